CREATE OR REPLACE FUNCTION messages.lease(
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The planner must walk message_order_idx whatever its statistics say, also in a session that planned when the table was empty.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    called timestamptz := clock_timestamp();
    moment timestamptz := called;
    token  uuid        := gen_random_uuid();
    wanted integer     := CASE WHEN lease.max_messages BETWEEN 1 AND 10000 THEN lease.max_messages
                              ELSE messages.check_lease(lease.queue_name, false, lease.max_messages, NULL)::integer END;
    tries  integer     := 0;
    taken  integer;
BEGIN
    -- A lane has the messages of one priority in the order of visible_at. Its mark is a sequence with the time from which leases
    -- look: a hint, which look() corrects. Mostly this is done once, and as one statement, because PL/pgSQL prepares each of its
    -- expressions anew in each transaction.
    LOOP
        RETURN QUERY
        -- Of each lane, the highest first, what is ready from its mark on; a lower lane is not touched if the upper ones have enough.
        WITH ready AS MATERIALIZED (
            SELECT found.*, lane.*
              FROM (SELECT q.max_attempts, q.lock_key, moment + coalesce(lease.lease_for, q.lease_for) AS until, q.fair_by, l.priority, l.mark,
                           pg_sequence_last_value(l.mark) AS marked,
                           'epoch'::timestamptz + coalesce(pg_sequence_last_value(l.mark), 0) * interval '1 us' AS begins
                      FROM messages.queue q JOIN messages.lane l ON l.queue_name = q.queue_name AND (l.mark IS NOT NULL OR tries > 0)
                     WHERE q.queue_name = lease.queue_name COLLATE "default"
                       AND CASE WHEN q.paused OR lease.lease_for IS NOT NULL
                                     -- session_is_limited(), without the cost of a call
                                     OR pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE
                                THEN messages.check_lease(q.queue_name, q.paused, wanted, lease.lease_for) ELSE true END
                       -- The first try finds nothing if nobody has looked at the queue for a second after a look was due, or if leases are
                       -- to be counted: lease_again() does it.
                       AND (tries > 0 OR num_nonnulls(q.max_leased, q.rate_limit) = 0
                            AND 'epoch'::timestamptz + pg_sequence_last_value(q.look_due) * interval '1 us' BETWEEN moment - interval '1 s' AND moment + interval '1 min')
                     ORDER BY l.priority DESC) lane
             CROSS JOIN LATERAL (
                SELECT m.ctid AS tid, m.visible_at, m.group_key FROM messages.message_rows m
                 WHERE m.queue_name = lease.queue_name COLLATE "default" AND m.priority = lane.priority
                   -- A mark that lies ahead was stored before the clock went back.
                   AND m.visible_at >= CASE WHEN lane.begins <= moment THEN lane.begins ELSE 'epoch' END AND m.visible_at <= moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                   -- Skip groups that another session is judging, without waiting for it. A queue has 1,024 of these locks.
                   AND (m.group_key IS NULL OR pg_try_advisory_xact_lock(lane.lock_key, hashtext(m.group_key) & 1023))
                 ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED) found
             LIMIT wanted),
        leased AS (
            UPDATE messages.message_rows m
               SET lock_expires_at = ready.until, leased_at = moment, lock_token = token,
                   locked_by = coalesce(left(lease.locked_by, 1024), session_user), attempts = least(m.attempts + 1, 32767)
              -- The shortest lease is a millisecond, which may have ended before the second try.
              FROM ready WHERE m.ctid = ready.tid AND coalesce(m.leased_at NOT BETWEEN called AND moment, true)
               AND CASE WHEN ready.group_key IS NULL THEN true
                        ELSE ready.tid = ANY ((SELECT messages.group_heads(lease.queue_name, ARRAY(SELECT r.tid FROM ready r WHERE r.group_key IS NOT NULL)))::tid[]) END
            RETURNING m.*, ready.max_attempts, ready.fair_by, ready.mark, ready.marked, ready.begins,
                      least(m.visible_at, moment - interval '5 ms') AS first),
        -- In the lane of the first of these, the next lease begins at it, but 5 ms behind the clock, for publishers that commit
        -- after their visible_at; unless somebody has moved the mark meanwhile. A step of microseconds does not move the mark, except
        -- where keys take turns, because there whole turns lie in it.
        timed AS (
            INSERT INTO messages.timer (queue_name, at, lock_token, ids)
            SELECT l.queue_name, l.lock_expires_at, token, ARRAY(SELECT l.id FROM leased l) FROM leased l
             -- True in any case: a lease without a timer would never end.
             WHERE CASE WHEN l.mark IS NOT NULL AND l.first > l.begins + CASE WHEN l.fair_by IS NULL THEN interval '0.2 ms' ELSE '0' END
                             AND pg_sequence_last_value(l.mark) IS NOT DISTINCT FROM l.marked
                        THEN setval(l.mark, (extract(epoch FROM l.first) * 1000000)::bigint) > 0 ELSE true END
             LIMIT 1)
        SELECT l.id, l.queue_name, l.message, l.headers, l.reference, l.topic, l.group_key, l.priority, l.attempts,
               l.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at
          FROM leased l;
        GET DIAGNOSTICS taken = ROW_COUNT;
        EXIT WHEN taken = wanted;
        tries := tries + 1;
        SELECT again.wanted, again.moment INTO wanted, moment FROM messages.lease_again(lease.queue_name, wanted - taken, tries, false) again;
        EXIT WHEN wanted = 0;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease(text, integer, interval, text) IS
    'Leases up to max_messages ready messages under one fresh lock_token, highest priority first, then oldest. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument; PQ016: a transaction that leased from a queue with a max_leased stays open.';
