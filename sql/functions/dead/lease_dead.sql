CREATE OR REPLACE FUNCTION messages.lease_dead(
    queue_name   text     DEFAULT NULL,
    max_messages integer  DEFAULT 100,
    lease_for    interval DEFAULT '5 minutes',
    locked_by    text     DEFAULT NULL,
    results      text[]   DEFAULT NULL,
    fingerprints text[]   DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    max_requeues integer  DEFAULT NULL,
    reference    text     DEFAULT NULL,
    topic        text     DEFAULT NULL,
    headers      jsonb    DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF messages.leased_dead_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    token   uuid := gen_random_uuid();
    missing bigint := 0;
    passed  bigint;
    pattern text := messages.topic_regex(lease_dead.topic);
    -- What the list of dead messages does not say is looked up in the archive.
    filtered boolean := coalesce(lease_dead.topic, lease_dead.headers::text) IS NOT NULL;
BEGIN
    PERFORM messages.check_headers(lease_dead.headers), messages.check_dead_lease(lease_dead.queue_name, lease_dead.results, lease_dead.max_requeues),
            messages.check_number('max_messages', lease_dead.max_messages, 1, 10000, required => true),
            messages.check_duration('lease_for', lease_dead.lease_for, '1 millisecond', '12 hours');
    -- A NULL out of a look-up that found nothing must not be taken for all queues.
    IF lease_dead.queue_name IS NULL
       AND coalesce(lease_dead.ids::text, lease_dead.fingerprints::text, lease_dead.reference) IS NULL THEN
        RAISE EXCEPTION 'queue_name is NULL'
            USING ERRCODE = 'PQ004', HINT = 'Name a queue, or messages by ids, fingerprints or reference.';
    END IF;
    LOOP
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT d.id FROM messages.dead_message d
             WHERE (lease_dead.queue_name IS NULL OR d.queue_name = lease_dead.queue_name COLLATE "default")
               AND (lease_dead.results IS NULL OR d.result = ANY (lease_dead.results))
               AND (lease_dead.fingerprints IS NULL OR d.fingerprint = ANY (lease_dead.fingerprints))
               AND (lease_dead.ids IS NULL OR d.id = ANY (lease_dead.ids))
               AND (lease_dead.max_requeues IS NULL OR d.requeues < lease_dead.max_requeues)
               AND (lease_dead.since IS NULL OR d.archived_at >= lease_dead.since)
               AND (lease_dead.until IS NULL OR d.archived_at < lease_dead.until)
               -- Few messages have a reference, and an index finds them; the list of the dead may have a million.
               AND (lease_dead.reference IS NULL OR d.id = ANY (ARRAY(
                    SELECT a.id FROM messages.archive_rows a WHERE a.reference = lease_dead.reference)))
               AND (NOT filtered OR EXISTS (
                    SELECT FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at
                       AND (pattern IS NULL OR '.' || a.topic ~ pattern)
                       AND (lease_dead.headers IS NULL OR a.headers @> lease_dead.headers)))
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= moment)
             ORDER BY d.archived_at LIMIT lease_dead.max_messages FOR UPDATE SKIP LOCKED),
        leased AS (
            UPDATE messages.dead_message d
               SET lock_expires_at = moment + coalesce(lease_dead.lease_for, '5 minutes'), lock_token = token,
                   locked_by = coalesce(lease_dead.locked_by, session_user)
              FROM picked p WHERE d.id = p.id
            RETURNING d.id, d.archived_at, d.lock_token, d.lock_expires_at)
        SELECT a.id, a.queue_name, a.result, a.details, a.failure, a.message, a.headers, a.reference, a.topic, a.group_key, a.attempts,
               a.requeues, a.created_at, a.archived_at, a.handled_by, l.lock_token, l.lock_expires_at
          FROM leased l JOIN messages.archive_rows a ON a.id = l.id AND a.archived_at = l.archived_at
         ORDER BY a.archived_at, a.id;
        EXIT WHEN FOUND;
        -- Those whose archived message is not there, in a partition that somebody detached, must not keep the others from
        -- their turn: they stay leased, and the next ones are tried.
        passed := missing;
        SELECT count(*) INTO missing FROM messages.dead_message d WHERE d.lock_token = token;
        EXIT WHEN missing = passed;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease_dead(text, integer, interval, text, text[], text[], bigint[], integer, text, text, jsonb, timestamptz, timestamptz) IS
    'Leases dead messages without a remedy under one fresh lock_token, oldest first; only those that were requeued fewer than max_requeues times, have this reference, a topic that matches the pattern and headers that contain these, and died at since or later and before until. NULL stands for any, but without a queue_name it takes ids, fingerprints or a reference. PQ001: unknown queue; PQ004: bad argument.';
