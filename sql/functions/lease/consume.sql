CREATE OR REPLACE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on SET enable_indexscan = on SET enable_tidscan = on
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    holder  text        := coalesce(consume.handled_by, session_user);
    wanted  integer     := consume.max_messages;
    taken   integer;
    level   record;
    from_at timestamptz;
    swept   boolean;
    band    smallint[];
    chosen  smallint;
    levels  integer     := 0;
    idle    smallint[];
    known   boolean := false;
BEGIN
    -- As in lease, which explains the marks and sweeps: docs/decisions/0005-hot-statements.md
    FOR level IN
        SELECT q.paused, q.max_attempts, p.priority, p.band, p.low_water AS low_water_mark,
               'epoch'::timestamptz + pg_sequence_last_value(p.low_water) * interval '1 us' AS low_water,
               'epoch'::timestamptz + pg_sequence_last_value(p.sweep_due) * interval '1 us' AS sweep_due
          FROM messages.queue q JOIN messages.queue_priority p ON p.queue_name = q.queue_name
         WHERE q.queue_name = consume.queue_name COLLATE "default" AND NOT p.follows ORDER BY p.priority DESC
    LOOP
        IF NOT known THEN
            known := true;
            PERFORM messages.check_lease(consume.queue_name, level.paused, wanted, NULL);
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
                chosen := messages.first_of_band(consume.queue_name, band, from_at, moment);
            END IF;
            RETURN QUERY
            WITH ready AS MATERIALIZED (
                SELECT m.ctid AS place, m.visible_at
                  FROM messages.message m
                 WHERE m.queue_name = consume.queue_name COLLATE "default" AND m.priority = chosen
                   AND m.visible_at >= from_at AND m.visible_at <= moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                 ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED),
            gone AS (
                DELETE FROM messages.message m USING ready WHERE m.ctid = ready.place RETURNING m.*),
            archived AS (
                INSERT INTO messages.message_archive (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                                      queue_name, result, handled_by, reference, topic, group_key, headers, message)
                SELECT g.id, g.created_at, moment, g.requeued_from, g.priority, least(g.attempts + 1, 32767), g.requeues,
                       g.queue_name, 'success', holder, g.reference, g.topic, g.group_key, g.headers, g.message
                  FROM gone g)
            SELECT g.id, g.queue_name, g.message, g.headers, g.reference, g.topic, g.group_key, g.priority,
                   least(g.attempts + 1, 32767)::smallint, level.max_attempts, g.requeues, g.created_at, NULL::uuid, NULL::timestamptz
              FROM gone g
             WHERE (SELECT CASE WHEN min(visible_at) > from_at + interval '0.2 ms' AND moment > from_at + interval '5.2 ms'
                                     -- Not back to where others have looked while this call waited for a processor.
                                     AND ('epoch'::timestamptz + pg_sequence_last_value(level.low_water_mark) * interval '1 us'
                                          BETWEEN min(visible_at) AND moment) IS NOT TRUE
                                THEN setval(level.low_water_mark, (extract(epoch FROM greatest(least(min(visible_at), moment - interval '5 ms'), 'epoch'::timestamptz + interval '1 us')) * 1000000)::bigint)
                                ELSE 0 END
                      FROM ready WHERE NOT swept AND level.band IS NULL) IS NOT NULL;
            GET DIAGNOSTICS taken = ROW_COUNT;
            wanted := wanted - taken;
            IF band IS NOT NULL AND chosen IS NOT NULL AND wanted > 0 THEN
                band := ARRAY(SELECT b.priority FROM unnest(band) AS b (priority) WHERE b.priority < chosen);
                CONTINUE;
            END IF;
            EXIT WHEN swept OR (moment < level.sweep_due + CASE WHEN wanted > 0 THEN interval '0' ELSE interval '1 s' END
                                 AND (level.sweep_due < moment + interval '1 s'
                                      OR level.sweep_due < moment + interval '31 s' AND extract(microseconds FROM level.sweep_due)::bigint % 1000 = 500))
                   OR (wanted = 0 AND level.low_water IS NULL);
            swept := true;
            IF level.band IS NULL THEN
                from_at := messages.sweep_priority(consume.queue_name, level.priority,
                                                   CASE WHEN wanted > 0 THEN 'infinity' ELSE from_at END,
                                                   level.max_attempts, greatest(consume.max_messages, 100), level.sweep_due, NULL,
                                                   taken = 0 AND wanted > 0 AND clock_timestamp() > moment + interval '10 ms');
                IF from_at IS NULL THEN
                    idle := idle || level.priority;
                END IF;
            ELSE
                from_at := messages.sweep_band(consume.queue_name, level.max_attempts, greatest(consume.max_messages, 100), level.sweep_due);
                band := level.band;
            END IF;
            EXIT WHEN from_at IS NULL OR wanted = 0;
        END LOOP;
        EXIT WHEN wanted <= 0;
    END LOOP;
    IF levels > 4 AND idle IS NOT NULL THEN
        PERFORM messages.arrange_bands(consume.queue_name, joining => idle);
    END IF;
    IF NOT known THEN
        PERFORM messages.raise_unknown_queue(consume.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.consume(text, integer, text) IS
    'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. max_leased does not apply. Errors as in lease.';
