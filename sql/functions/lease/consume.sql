CREATE OR REPLACE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The planner must walk message_order_idx whatever its statistics say, also in a session that planned when the table was empty.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    wanted integer     := CASE WHEN consume.max_messages BETWEEN 1 AND 10000 THEN consume.max_messages
                               ELSE messages.check_lease(consume.queue_name, false, consume.max_messages, NULL)::integer END;
    tries  integer     := 0;
    taken  integer;
BEGIN
    -- As in lease.
    LOOP
        RETURN QUERY
        -- Of each lane, the highest first, what is ready from its mark on; a lower lane is not touched if the upper ones have enough.
        WITH ready AS MATERIALIZED (
            SELECT found.*, lane.*
              FROM (SELECT q.max_attempts, q.lock_key, q.fair_by, l.priority, l.mark, pg_sequence_last_value(l.mark) AS marked,
                           'epoch'::timestamptz + coalesce(pg_sequence_last_value(l.mark), 0) * interval '1 us' AS begins
                      FROM messages.queue q JOIN messages.lane l ON l.queue_name = q.queue_name AND (l.mark IS NOT NULL OR tries > 0)
                     WHERE q.queue_name = consume.queue_name COLLATE "default"
                       AND CASE WHEN q.paused OR pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE
                                THEN messages.check_lease(q.queue_name, q.paused, wanted, NULL) ELSE true END
                       AND (tries > 0 OR q.rate_limit IS NULL
                            AND 'epoch'::timestamptz + pg_sequence_last_value(q.look_due) * interval '1 us' BETWEEN moment - interval '1 s' AND moment + interval '1 min')
                     ORDER BY l.priority DESC) lane
             CROSS JOIN LATERAL (
                SELECT m.ctid AS tid, m.visible_at, m.group_key FROM messages.message_rows m
                 WHERE m.queue_name = consume.queue_name COLLATE "default" AND m.priority = lane.priority
                   -- A mark that lies ahead was stored before the clock went back.
                   AND m.visible_at >= CASE WHEN lane.begins <= moment THEN lane.begins ELSE 'epoch' END AND m.visible_at <= moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                   -- Skip groups that another session is judging, without waiting for it. A queue has 1,024 of these locks.
                   AND (m.group_key IS NULL OR pg_try_advisory_xact_lock(lane.lock_key, hashtext(m.group_key) & 1023))
                 ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED) found
             LIMIT wanted),
        -- As in lease: the mark of the lane of the first of these.
        moved AS MATERIALIZED (
            SELECT setval(f.mark, (extract(epoch FROM f.first) * 1000000)::bigint)
              FROM (SELECT r.fair_by, r.mark, r.marked, r.begins, least(r.visible_at, moment - interval '5 ms') AS first FROM ready r LIMIT 1) f
             WHERE f.first > f.begins + CASE WHEN f.fair_by IS NULL THEN interval '0.2 ms' ELSE '0' END
               AND pg_sequence_last_value(f.mark) IS NOT DISTINCT FROM f.marked),
        gone AS (
            DELETE FROM messages.message_rows m USING ready WHERE m.ctid = ready.tid
               AND CASE WHEN ready.group_key IS NULL THEN true
                        ELSE ready.tid = ANY ((SELECT messages.group_heads(consume.queue_name, ARRAY(SELECT r.tid FROM ready r WHERE r.group_key IS NOT NULL)))::tid[]) END
            RETURNING m.*, ready.max_attempts),
        archived AS (
            INSERT INTO messages.archive_rows (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                               queue_name, result, handled_by, reference, topic, group_key, headers, message)
            SELECT g.id, g.created_at, moment, g.requeued_from, g.priority, least(g.attempts + 1, 32767), g.requeues, g.queue_name,
                   'success', coalesce(left(consume.handled_by, 1024), session_user), g.reference, g.topic, g.group_key, g.headers, g.message
              FROM gone g
            RETURNING id, archived_at, queue_name, result, fingerprint, requeues, group_key),
        ended AS (
            SELECT messages.after_archive(array_agg(ROW(a.*)::messages.ended_message))
              FROM archived a WHERE a.group_key IS NOT NULL HAVING count(*) > 0)
        SELECT g.id, g.queue_name, g.message, g.headers, g.reference, g.topic, g.group_key, g.priority,
               least(g.attempts + 1, 32767)::smallint, g.max_attempts, g.requeues, g.created_at, NULL::uuid, NULL::timestamptz
          FROM gone g WHERE (SELECT count(*) FROM moved) + (SELECT count(*) FROM ended) >= 0;
        GET DIAGNOSTICS taken = ROW_COUNT;
        EXIT WHEN taken = wanted;
        tries := tries + 1;
        SELECT again.wanted, again.moment INTO wanted, moment FROM messages.lease_again(consume.queue_name, wanted - taken, tries, true) again;
        EXIT WHEN wanted = 0;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.consume(text, integer, text) IS
    'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. max_leased does not apply. Errors as in lease.';
