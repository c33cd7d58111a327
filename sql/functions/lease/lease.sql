CREATE OR REPLACE FUNCTION messages.lease(
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL,
    topic        text     DEFAULT NULL,
    headers      jsonb    DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The planner must walk message_order_idx whatever its statistics say: docs/decisions/0005-hot-statements.md
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on SET enable_indexscan = on SET enable_tidscan = on
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    token    uuid        := gen_random_uuid();
    holder   text        := coalesce(lease.locked_by, session_user);
    pattern  text        := CASE WHEN lease.topic IS NOT NULL THEN messages.topic_regex(lease.topic) END;
    wanted   integer     := lease.max_messages;
    taken    integer;
    band     record;
    until    timestamptz;
    from_at  timestamptz;
    swept    boolean;
BEGIN
    FOR band IN
        SELECT q.paused, q.max_attempts, q.lease_for, q.max_leased, b.priority, b.low_water AS low_water_mark,
               'epoch'::timestamptz + pg_sequence_last_value(b.low_water) * interval '1 us' AS low_water,
               'epoch'::timestamptz + pg_sequence_last_value(b.sweep_due) * interval '1 us' AS sweep_due
          FROM messages.queue q JOIN messages.band b ON b.queue_name = q.queue_name
         WHERE q.queue_name = lease.queue_name ORDER BY b.priority DESC
    LOOP
        IF until IS NULL THEN
            IF band.paused OR wanted IS NULL OR wanted < 1 OR wanted > 10000 OR lease.lease_for IS NOT NULL
               OR (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
                   AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) THEN
                PERFORM messages.check_lease(lease.queue_name, band.paused, wanted, lease.lease_for);
            END IF;
            until := moment + coalesce(lease.lease_for, band.lease_for);
            IF band.max_leased IS NOT NULL THEN
                wanted := least(wanted, messages.count_leasable(lease.queue_name, band.max_leased));
                EXIT WHEN wanted = 0;
            END IF;
        END IF;
        from_at := coalesce(band.low_water, '-infinity');
        swept := false;
        LOOP
            RETURN QUERY
            WITH ready AS MATERIALIZED (
                SELECT m.ctid AS place, m.visible_at
                  FROM messages.message m
                 WHERE m.queue_name = lease.queue_name AND m.priority = band.priority
                   AND m.visible_at >= from_at AND m.visible_at <= moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                   AND (pattern IS NULL OR '.' || m.topic ~ pattern)
                   AND (lease.headers IS NULL OR m.headers @> lease.headers)
                 ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED),
            leased AS (
                UPDATE messages.message m
                   SET lock_expires_at = until, leased_at = moment, lock_token = token, locked_by = holder,
                       attempts = m.attempts + 1
                  FROM ready WHERE m.ctid = ready.place
                RETURNING m.*)
            SELECT l.id, l.queue_name, l.message,
                   CASE WHEN l.topic IS NULL AND l.group_key IS NULL THEN l.headers
                        ELSE coalesce(l.headers, '{}') || jsonb_strip_nulls(jsonb_build_object('topic', l.topic, 'group_key', l.group_key)) END,
                   l.reference, l.priority, l.attempts, band.max_attempts, l.requeues, l.created_at, l.lock_token,
                   l.lock_expires_at
              FROM leased l
             -- Evaluated once: what lies before the first of these is finished, so the next lease need not look there.
             WHERE (SELECT CASE WHEN min(visible_at) > from_at + interval '0.2 ms' AND moment > from_at + interval '5.2 ms'
                                THEN setval(band.low_water_mark, (extract(epoch FROM least(min(visible_at), moment - interval '5 ms')) * 1000000)::bigint)
                                ELSE 0 END
                      FROM ready WHERE NOT swept AND pattern IS NULL AND lease.headers IS NULL) IS NOT NULL;
            GET DIAGNOSTICS taken = ROW_COUNT;
            wanted := wanted - taken;
            -- A sweep pays for itself: at most 2 % of the time, and once a second while there is enough without it.
            EXIT WHEN swept OR moment < band.sweep_due + CASE WHEN wanted > 0 THEN interval '0' ELSE interval '1 s' END
                   OR (wanted = 0 AND band.low_water IS NULL);
            swept := true;
            -- Whoever still wants more has seen all that is ready, so what the sweep frees may lie anywhere.
            from_at := messages.sweep_band(lease.queue_name, band.priority,
                                           CASE WHEN wanted > 0 THEN 'infinity' ELSE from_at END,
                                           band.max_attempts, greatest(lease.max_messages, 100));
            EXIT WHEN from_at IS NULL OR wanted = 0;
        END LOOP;
        EXIT WHEN wanted <= 0;
    END LOOP;
    IF until IS NULL THEN
        PERFORM messages.raise_unknown_queue(lease.queue_name);
    END IF;
    IF band.max_leased IS NOT NULL AND wanted < lease.max_messages THEN
        PERFORM messages.record_counted_leases(lease.queue_name, token);
    END IF;
END $$;
COMMENT ON FUNCTION messages.lease(text, integer, interval, text, text, jsonb) IS
    'Takes up to max_messages ready messages under one fresh lock_token, highest priority and oldest first; of a topic pattern, or with headers that contain these. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument.';
