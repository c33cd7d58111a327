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
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on SET enable_indexscan = on SET enable_tidscan = on
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    token    uuid        := gen_random_uuid();
    holder   text        := coalesce(lease.locked_by, session_user);
    pattern  text;
    wanted   integer;
    room     integer;
    taken    integer;
    level    record;
    until    timestamptz;
    from_at  timestamptz;
    swept    boolean;
    band     smallint[];
    chosen   smallint;
    levels   integer     := 0;
    idle     smallint[];
BEGIN
    -- The short way, in one statement: what nearly every lease of a busy queue is. Whatever is unusual, and a queue that has
    -- less than is wanted in its highest priority, goes the long way below. docs/decisions/0037-the-short-way-of-a-lease.md
    RETURN QUERY
    WITH level AS MATERIALIZED (
        SELECT l.*
          FROM (SELECT p.priority, p.band, p.low_water AS mark, q.paused, q.max_leased, q.max_attempts, moment + q.lease_for AS until,
                       'epoch'::timestamptz + pg_sequence_last_value(p.low_water) * interval '1 us' AS from_at,
                       'epoch'::timestamptz + pg_sequence_last_value(p.sweep_due) * interval '1 us' AS sweep_due
                  FROM messages.queue q JOIN messages.queue_priority p ON p.queue_name = q.queue_name
                 WHERE q.queue_name = lease.queue_name COLLATE "default" AND NOT p.follows
                 ORDER BY p.priority DESC LIMIT 1) l
         WHERE l.band IS NULL AND l.max_leased IS NULL AND NOT l.paused AND l.from_at <= moment AND l.until >= moment + interval '1 s'
           AND l.sweep_due > moment - interval '1 s'
           -- After a walk over dead versions it is due later, too, and what is leased does not lie in the way.
           AND (l.sweep_due < moment + interval '0.4 s'
                OR l.sweep_due BETWEEN moment + interval '1 s' AND moment + interval '31 s' AND extract(microseconds FROM l.sweep_due)::bigint % 1000 = 500)
           AND lease.max_messages BETWEEN 1 AND 10000 AND num_nonnulls(lease.lease_for, lease.topic, lease.headers) = 0
           AND (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') IS NOT TRUE
                OR pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE'))),
    ready AS MATERIALIZED (
        SELECT l.until, l.max_attempts, m.place, m.visible_at
          FROM level l CROSS JOIN LATERAL (
            SELECT m.ctid AS place, m.visible_at
              FROM messages.message m
             WHERE m.queue_name = lease.queue_name COLLATE "default" AND m.priority = l.priority
               AND m.visible_at >= l.from_at AND m.visible_at <= moment
               AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
             ORDER BY m.visible_at LIMIT lease.max_messages FOR UPDATE SKIP LOCKED) m),
    leased AS (
        UPDATE messages.message m
           SET lock_expires_at = ready.until, leased_at = moment, lock_token = token, locked_by = holder, attempts = least(m.attempts + 1, 32767)
          FROM ready WHERE m.ctid = ready.place
        RETURNING m.*, ready.max_attempts)
    SELECT l.id, l.queue_name, l.message, l.headers, l.reference, l.topic, l.group_key, l.priority, l.attempts,
           l.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at
      FROM leased l
     -- Moves the mark as below. That all are locked before one is changed keeps what concurrent calls lease apart.
     WHERE (SELECT CASE WHEN r.visible_at > l.from_at + interval '0.2 ms' AND moment > l.from_at + interval '5.2 ms'
                             AND ('epoch'::timestamptz + pg_sequence_last_value(l.mark) * interval '1 us'
                                  BETWEEN r.visible_at AND moment) IS NOT TRUE
                        THEN setval(l.mark, (extract(epoch FROM greatest(least(r.visible_at, moment - interval '5 ms'), 'epoch'::timestamptz + interval '1 us')) * 1000000)::bigint)
                        ELSE 0 END
              FROM level l CROSS JOIN (SELECT min(r.visible_at) AS visible_at FROM ready r) r) IS NOT NULL;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken > 0 AND taken = lease.max_messages THEN
        RETURN;
    END IF;
    wanted := lease.max_messages - taken;
    pattern := CASE WHEN lease.topic IS NOT NULL THEN messages.topic_regex(lease.topic) END;
    FOR level IN
        SELECT q.paused, q.max_attempts, q.lease_for, q.max_leased, p.priority, p.band, p.low_water AS low_water_mark, p.sweep_due AS sweep_due_mark,
               'epoch'::timestamptz + pg_sequence_last_value(p.low_water) * interval '1 us' AS low_water,
               'epoch'::timestamptz + pg_sequence_last_value(p.sweep_due) * interval '1 us' AS sweep_due
          FROM messages.queue q JOIN messages.queue_priority p ON p.queue_name = q.queue_name
         WHERE q.queue_name = lease.queue_name COLLATE "default" AND NOT p.follows ORDER BY p.priority DESC
    LOOP
        IF until IS NULL THEN
            IF level.paused OR wanted IS NULL OR wanted < 1 OR wanted > 10000 OR lease.lease_for IS NOT NULL
               OR (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
                   AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) THEN
                PERFORM messages.check_lease(lease.queue_name, level.paused, wanted, lease.lease_for);
            END IF;
            IF level.low_water IS NULL THEN
                -- Nobody leased here before, or the queue got a max_leased while this call waited for the mark.
                IF level.low_water_mark IS DISTINCT FROM (SELECT p.low_water FROM messages.queue_priority p
                                                           WHERE p.queue_name = lease.queue_name COLLATE "default" AND p.priority = level.priority) THEN
                    RETURN QUERY SELECT * FROM messages.lease(lease.queue_name, lease.max_messages, lease.lease_for,
                                                              lease.locked_by, lease.topic, lease.headers);
                    RETURN;
                END IF;
            END IF;
            until := moment + coalesce(lease.lease_for, level.lease_for);
            IF level.max_leased IS NOT NULL THEN
                wanted := least(wanted, messages.count_leasable(lease.queue_name, level.max_leased));
                EXIT WHEN wanted = 0;
                room := wanted;
            END IF;
        END IF;
        -- A sweep of an upper part of the band may have moved the mark of this one.
        from_at := CASE WHEN level.band IS NOT NULL THEN messages.stored_moment(level.low_water_mark, clock_timestamp())
                        WHEN level.low_water <= clock_timestamp() THEN level.low_water ELSE '-infinity' END;
        swept := false;
        levels := levels + 1;
        chosen := level.priority;
        band := level.band;
        LOOP
            -- Nearly always all of a band are empty: one look for all of them.
            IF band IS NOT NULL THEN
                chosen := messages.first_of_band(lease.queue_name, band, from_at, moment);
            END IF;
            RETURN QUERY
            WITH ready AS MATERIALIZED (
                SELECT m.ctid AS place, m.visible_at
                  FROM messages.message m
                 WHERE m.queue_name = lease.queue_name COLLATE "default" AND m.priority = chosen
                   AND m.visible_at >= from_at AND m.visible_at <= moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                   AND (pattern IS NULL OR '.' || m.topic ~ pattern)
                   AND (lease.headers IS NULL OR m.headers @> lease.headers)
                 ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED),
            leased AS (
                UPDATE messages.message m
                   SET lock_expires_at = until, leased_at = moment, lock_token = token, locked_by = holder,
                       attempts = least(m.attempts + 1, 32767)
                  FROM ready WHERE m.ctid = ready.place
                RETURNING m.*)
            SELECT l.id, l.queue_name, l.message, l.headers, l.reference, l.topic, l.group_key, l.priority, l.attempts,
                   level.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at
              FROM leased l
             -- Evaluated once: what lies before the first of these is finished, so the next lease need not look there. The
             -- mark stays 5 ms behind, for publishes that commit after their visible_at; later ones are found by a sweep.
             WHERE (SELECT CASE WHEN min(visible_at) > from_at + interval '0.2 ms' AND moment > from_at + interval '5.2 ms'
                                     -- Not back to where others have looked while this call waited for a processor.
                                     AND ('epoch'::timestamptz + pg_sequence_last_value(level.low_water_mark) * interval '1 us'
                                          BETWEEN min(visible_at) AND moment) IS NOT TRUE
                                THEN setval(level.low_water_mark, (extract(epoch FROM greatest(least(min(visible_at), moment - interval '5 ms'), 'epoch'::timestamptz + interval '1 us')) * 1000000)::bigint)
                                ELSE 0 END
                      FROM ready WHERE NOT swept AND level.band IS NULL AND pattern IS NULL AND lease.headers IS NULL) IS NOT NULL;
            GET DIAGNOSTICS taken = ROW_COUNT;
            wanted := wanted - taken;
            -- The sweep that is due next has to find this lease as well.
            IF taken > 0 AND until < moment + interval '1 s' AND until < messages.stored_moment(level.sweep_due_mark) THEN
                PERFORM messages.store_moment(level.sweep_due_mark, until);
            END IF;
            IF band IS NOT NULL AND chosen IS NOT NULL AND wanted > 0 THEN
                band := ARRAY(SELECT b.priority FROM unnest(band) AS b (priority) WHERE b.priority < chosen);
                CONTINUE;
            END IF;
            -- A sweep when it is due, and once a second while there is enough without it. One that is due in more than a second counts
            -- as none, unless it has the half millisecond of a long walk: the clock went back.
            EXIT WHEN swept OR (moment < level.sweep_due + CASE WHEN wanted > 0 THEN interval '0' ELSE interval '1 s' END
                                 AND (level.sweep_due < moment + interval '1 s'
                                      OR level.sweep_due < moment + interval '31 s' AND extract(microseconds FROM level.sweep_due)::bigint % 1000 = 500))
                   OR (wanted = 0 AND level.low_water IS NULL);
            swept := true;
            -- A call that still wants more has seen all that is ready, so what the sweep frees may lie anywhere. As of the
            -- moment, if it could free what this call leased for a millisecond.
            IF level.band IS NULL THEN
                from_at := messages.sweep_priority(lease.queue_name, level.priority,
                                                   CASE WHEN wanted > 0 THEN 'infinity' ELSE from_at END,
                                                   level.max_attempts, greatest(lease.max_messages, 100), level.sweep_due,
                                                   CASE WHEN wanted < lease.max_messages THEN moment END,
                                                   taken = 0 AND wanted > 0 AND num_nonnulls(lease.topic, lease.headers) = 0
                                                   AND clock_timestamp() > moment + interval '10 ms');
                IF from_at IS NULL THEN
                    idle := idle || level.priority;
                END IF;
            ELSE
                from_at := messages.sweep_band(lease.queue_name, level.max_attempts, greatest(lease.max_messages, 100), level.sweep_due, moment);
                band := level.band;
            END IF;
            EXIT WHEN from_at IS NULL OR wanted = 0;
        END LOOP;
        EXIT WHEN wanted <= 0;
    END LOOP;
    IF levels > 4 AND idle IS NOT NULL THEN
        PERFORM messages.arrange_bands(lease.queue_name, joining => idle);
    END IF;
    IF until IS NULL THEN
        PERFORM messages.raise_unknown_queue(lease.queue_name);
    END IF;
    IF room > wanted THEN
        PERFORM messages.record_counted_leases(lease.queue_name, token, room - wanted);
    END IF;
END $$;
COMMENT ON FUNCTION messages.lease(text, integer, interval, text, text, jsonb) IS
    'Leases up to max_messages ready messages under one fresh lock_token, highest priority first, then oldest; only those whose topic matches the pattern and whose headers contain the ones given. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument.';
