CREATE OR REPLACE FUNCTION messages.audit_log(
    queue_name  text        DEFAULT NULL,
    since       timestamptz DEFAULT NULL,
    until       timestamptz DEFAULT NULL,
    max_entries integer     DEFAULT 100,
    by_user     text        DEFAULT NULL,
    verb        text        DEFAULT NULL
) RETURNS TABLE (audit_id bigint, at timestamptz, login text, application text, acting_user text, action text, queue text, arguments jsonb, affected bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('max_entries', audit_log.max_entries, 1, 10000, required => true);
    RETURN QUERY
    SELECT a.audit_id, a.at, a.login, a.application, a.acting_user, a.action, a.queue_name, a.arguments, a.affected
      FROM messages.audit a
     WHERE (audit_log.queue_name IS NULL OR a.queue_name = audit_log.queue_name COLLATE "default")
       AND (audit_log.since IS NULL OR a.at >= audit_log.since) AND (audit_log.until IS NULL OR a.at < audit_log.until)
       AND (audit_log.by_user IS NULL OR audit_log.by_user COLLATE "default" IN (a.acting_user, a.login))
       AND (audit_log.verb IS NULL OR a.action = audit_log.verb COLLATE "default")
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY a.at DESC, a.audit_id DESC LIMIT audit_log.max_entries;
END $$;
COMMENT ON FUNCTION messages.audit_log(text, timestamptz, timestamptz, integer, text, text) IS
    'What was done to the queues by hand, newest first: of one queue, or of those that this login may observe; by one user, whether named or the login itself, and of one verb, if they are given. A queue that does not exist is no error: the entries of those that were dropped stay. PQ004: max_entries out of range.';
