CREATE OR REPLACE FUNCTION messages.lease(
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    policy record;
    places tid[];
    token  uuid;
    moment timestamptz;
BEGIN
    SELECT * INTO policy FROM messages.consumable_queue(lease.queue_name, lease.max_messages);
    IF lease.lease_for IS NOT NULL THEN
        PERFORM messages.check_duration('lease_for', lease.lease_for, '1 millisecond', '12 hours');
    END IF;
    places := messages.take(lease.queue_name, lease.max_messages, policy.max_attempts);
    IF places = '{}' THEN
        RETURN;
    END IF;
    token := gen_random_uuid();
    moment := clock_timestamp();
    RETURN QUERY
    WITH leased AS (
        UPDATE messages.message m
           SET lock_expires_at = moment + coalesce(lease.lease_for, policy.lease_for), leased_at = moment,
               lock_token = token, locked_by = coalesce(lease.locked_by, session_user), attempts = m.attempts + 1
         WHERE m.ctid = ANY (places)
        RETURNING m.*)
    SELECT l.id, l.queue_name, l.message, l.headers, l.reference, l.priority, l.attempts, policy.max_attempts, l.requeues,
           l.created_at, l.lock_token, l.lock_expires_at
      FROM leased l ORDER BY l.priority DESC, l.visible_at, l.id;
END $$;
COMMENT ON FUNCTION messages.lease(text, integer, interval, text) IS
    'Takes up to max_messages ready messages under one fresh lock_token, highest priority and oldest first. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument.';
