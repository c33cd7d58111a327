CREATE OR REPLACE FUNCTION messages.revoke_queue(queue_name text, role_name text, privilege text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    role    regrole := messages.find_role(revoke_queue.role_name);
    revoked integer;
BEGIN
    -- The role stays in messages_limited: without it the role would reach every queue, and other databases may rely on it.
    DELETE FROM messages.queue_grant g
     WHERE g.queue_name = revoke_queue.queue_name COLLATE "default" AND g.grantee = role
       AND (revoke_queue.privilege IS NULL OR g.privilege = revoke_queue.privilege);
    GET DIAGNOSTICS revoked = ROW_COUNT;
    PERFORM messages.record_audit('revoke_queue', revoke_queue.queue_name, jsonb_build_object(
        'role_name', revoke_queue.role_name, 'privilege', revoke_queue.privilege), revoked);
    RETURN revoked;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', revoke_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.revoke_queue(text, text, text) IS
    'Revokes what grant_queue granted (privilege NULL: everything on the queue) and returns how many grants there were. The role stays limited. PQ004: no such role; PQ016: another transaction is changing it for more than three seconds.';
