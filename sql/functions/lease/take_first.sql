CREATE OR REPLACE FUNCTION messages.take_first(
    queue_name text, wanted integer, prepared timestamptz,
    OUT moment timestamptz, OUT tids tid[], OUT ids bigint[], OUT lease_for interval, OUT max_attempts smallint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The planner must walk message_order_idx whatever its statistics say, also in a session that planned when the table was empty.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    called timestamptz := coalesce(prepared, clock_timestamp());
    head  record;
BEGIN
    -- A lane has the messages of one priority in the order of visible_at. Its mark is a sequence with the time from which leases look:
    -- a hint, which look() corrects. One that lies ahead was stored before the clock went back.
    SELECT q.lease_for, q.max_attempts, q.fair_by, r.* INTO head
      FROM messages.queue q
     CROSS JOIN LATERAL (
        SELECT array_agg(f.tid) AS tids, array_agg(f.id) AS ids, (array_agg(f.visible_at))[1] AS first,
               (array_agg(f.mark))[1] AS mark, (array_agg(f.marked))[1] AS marked, (array_agg(f.begins))[1] AS begins
          FROM (SELECT m.*, l.mark, l.marked, l.begins
                  FROM (SELECT l.priority, l.mark, pg_sequence_last_value(l.mark) AS marked,
                               CASE WHEN pg_sequence_last_value(l.mark) <= extract(epoch FROM called) * 1000000
                                    THEN 'epoch'::timestamptz + pg_sequence_last_value(l.mark) * interval '1 us' ELSE 'epoch' END AS begins
                          FROM messages.lane l
                         WHERE l.queue_name = q.queue_name AND (l.used OR prepared IS NOT NULL)
                         ORDER BY l.priority DESC) l
                 CROSS JOIN LATERAL (
                    SELECT m.ctid AS tid, m.id, m.visible_at FROM messages.message_rows m
                     WHERE m.queue_name = take_first.queue_name COLLATE "default" AND m.priority = l.priority
                       AND m.visible_at >= l.begins AND m.visible_at <= called
                       AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > called)
                     ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED) m
                 LIMIT wanted) f OFFSET 0) r
     WHERE q.queue_name = take_first.queue_name COLLATE "default"
       -- Nothing where somebody has to look, to count or to refuse before: prepare_lease() does that.
       AND (prepared IS NOT NULL
            OR wanted BETWEEN 1 AND 10000 AND NOT q.paused AND num_nonnulls(q.max_leased, q.rate_limit) = 0
               AND pg_sequence_last_value(q.look_due) BETWEEN extract(epoch FROM called) * 1000000 - 1000000 AND extract(epoch FROM called) * 1000000 + 60000000
               AND NOT EXISTS (SELECT FROM messages.timer t
                                WHERE t.queue_name = q.queue_name AND t.group_key IS NOT NULL AND t.at <= called AND t.at > called - interval '5 s')
               -- session_is_limited(), without the cost of a call
               AND (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) IS NOT TRUE);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    moment := called;
    tids := head.tids;
    ids := head.ids;
    lease_for := head.lease_for;
    max_attempts := head.max_attempts;
    -- The next lease begins where this one did, but 5 ms behind the clock, for publishers that commit after their visible_at; unless
    -- somebody has moved the mark meanwhile. Where keys take turns, whole turns lie within microseconds.
    IF least(head.first, called - interval '5 ms') > head.begins + (head.fair_by IS NULL)::integer * interval '0.2 ms'
       AND pg_sequence_last_value(head.mark) IS NOT DISTINCT FROM head.marked THEN
        PERFORM setval(head.mark, (extract(epoch FROM least(head.first, called - interval '5 ms')) * 1000000)::bigint - 1);
    END IF;
END $$;
COMMENT ON FUNCTION messages.take_first(text, integer, timestamptz) IS
    'Locks the first ready messages of the lanes of a queue, the highest priority first, and moves the mark to the first of them. prepared is the time that prepare_lease() returned. Without it this returns no moment, and locks nothing, where prepare_lease() has to be called before.';
