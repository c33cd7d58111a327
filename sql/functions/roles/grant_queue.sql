CREATE OR REPLACE FUNCTION messages.grant_queue(queue_name text, role_name text, privilege text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    grantee regrole := messages.find_role(grant_queue.role_name);
    groups  text[]  := CASE grant_queue.privilege
        WHEN 'publish' THEN ARRAY['messages_limited', 'messages_publisher']
        WHEN 'consume' THEN ARRAY['messages_limited', 'messages_consumer']
        WHEN 'observe' THEN ARRAY['messages_limited', 'messages_observer'] END;
    added   boolean;
    name    text;
BEGIN
    PERFORM messages.check_choice('privilege', grant_queue.privilege, '{publish,consume,observe}', required => true);
    IF to_regrole('messages_limited') IS NULL THEN
        RAISE EXCEPTION 'this cluster has no role messages_limited' USING ERRCODE = 'undefined_object',
            HINT = 'Install again as a superuser or a role with CREATEROLE: the installation creates the group roles.';
    ELSIF starts_with(grant_queue.role_name, 'messages_') OR pg_has_role(grantee, to_regrole('messages_admin'), 'USAGE') THEN
        RAISE EXCEPTION 'role % cannot be limited to queues', quote_literal(grant_queue.role_name) USING ERRCODE = 'PQ004',
            HINT = 'Give a role that is not a superuser, not a member of messages_admin, and not one of the group roles.';
    ELSIF messages.reads_all_bodies(grantee) THEN
        RAISE EXCEPTION 'role % reads the messages of all queues', quote_literal(grant_queue.role_name) USING ERRCODE = 'PQ004',
            HINT = 'Revoke messages_reader, messages_pipeline, messages_raw and SELECT on messages.message from it first, or give another role: while it has these, a limit to some queues means nothing.';
    END IF;
    PERFORM FROM messages.queue q WHERE q.queue_name = grant_queue.queue_name COLLATE "default" FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(grant_queue.queue_name);
    END IF;
    -- A new role may get the OID of one that was dropped.
    DELETE FROM messages.queue_grant g WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = g.grantee);
    INSERT INTO messages.queue_grant (queue_name, grantee, privilege)
    VALUES (grant_queue.queue_name, grantee, grant_queue.privilege) ON CONFLICT DO NOTHING;
    added := FOUND;
    FOREACH name IN ARRAY groups LOOP
        IF NOT pg_has_role(grantee, name, 'MEMBER') THEN
            EXECUTE format('GRANT %I TO %I', name, grant_queue.role_name);
        END IF;
    END LOOP;
    PERFORM messages.record_audit('grant_queue', grant_queue.queue_name, jsonb_build_object(
        'role_name', grant_queue.role_name, 'privilege', grant_queue.privilege), added::integer);
    RETURN added;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', grant_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.grant_queue(text, text, text) IS
    'Lets a role and its members publish to, consume from or observe one queue. From then on it reaches only the queues granted to it, as a member of messages_limited. True if the grant is new. PQ001: unknown queue; PQ004: bad role or privilege; 42501: the owner of the schema may not grant the group roles; PQ016: another transaction is changing it for more than three seconds.';
