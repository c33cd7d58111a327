CREATE OR REPLACE FUNCTION messages.check_access(queue_name text, privilege text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF NOT messages.session_is_limited() THEN
        RETURN;
    ELSIF check_access.queue_name IS NULL THEN
        RAISE EXCEPTION 'role % is limited to its queues', quote_literal(session_user)
            USING ERRCODE = '42501', HINT = 'Name one of them: SELECT * FROM messages.granted_queues()';
    ELSIF NOT EXISTS (
        SELECT FROM messages.queue_grant g
         WHERE g.queue_name = check_access.queue_name COLLATE "default"
           AND g.privilege IN (check_access.privilege, CASE check_access.privilege WHEN 'observe' THEN 'consume' END)
           AND pg_has_role(session_user, g.grantee, 'MEMBER')) THEN
        RAISE EXCEPTION 'role % has no privilege to % on queue %', quote_literal(session_user), check_access.privilege,
                        quote_literal(left(check_access.queue_name, 100))
            USING ERRCODE = '42501',
                  HINT = format('An admin can grant it: SELECT messages.grant_queue(%L, %L, %L)',
                                left(check_access.queue_name, 100), session_user, check_access.privilege);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_access(text, text) IS
    'Raises 42501 if this login is limited and the queue was not granted to it.';
