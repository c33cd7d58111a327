CREATE OR REPLACE FUNCTION messages.workers(queue_name text DEFAULT NULL, period interval DEFAULT '5 minutes')
RETURNS TABLE (worker text, worker_queue text, leased bigint, leased_since timestamptz, lease_ends_at timestamptz, finished bigint, dead bigint,
               per_second double precision, run_avg interval, last_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment      timestamptz := clock_timestamp();
    names       text[];
    count_up_to bigint;
BEGIN
    PERFORM messages.check_duration('period', workers.period, '1 second', '1 day', required => true);
    PERFORM messages.check_queue(workers.queue_name, 'observe') WHERE workers.queue_name IS NOT NULL;
    names := ARRAY(
        SELECT q.queue_name FROM messages.queue q
         WHERE (workers.queue_name IS NULL OR q.queue_name = workers.queue_name COLLATE "default")
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)));
    -- Each leased message is in the ids of a timer. A timer without a token is mostly that of messages that expire or are delayed.
    count_up_to := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
    RETURN QUERY
    WITH held AS (
        SELECT m.locked_by, t.queue_name AS name, count(DISTINCT m.id) AS leased, min(m.leased_at) AS leased_since,
               min(m.lock_expires_at) AS lease_ends_at, max(m.leased_at) AS last_at
          FROM unnest(names) AS n (name)
         CROSS JOIN LATERAL (
            SELECT t.queue_name, t.lock_token, one.id
              FROM (SELECT t.* FROM messages.timer t WHERE t.queue_name = n.name ORDER BY t.at LIMIT count_up_to) t
             CROSS JOIN LATERAL unnest(CASE WHEN t.lock_token IS NULL THEN t.ids[:10] ELSE t.ids END) AS one (id) LIMIT count_up_to) t
          JOIN messages.message_rows m ON m.id = t.id AND m.lock_token IS NOT DISTINCT FROM t.lock_token
         WHERE m.lock_expires_at > moment
         GROUP BY 1, 2),
    done AS (
        SELECT a.handled_by, a.queue_name AS name, count(*) AS finished, count(*) FILTER (WHERE a.result NOT IN ('success', 'cancelled')) AS dead,
               avg(a.archived_at - a.leased_at) AS run_avg, max(a.archived_at) AS last_at
          FROM messages.archive_rows a
         WHERE a.archived_at > moment - workers.period AND a.archived_at <= moment + interval '1 minute' AND a.handled_by IS NOT NULL
           AND (workers.queue_name IS NULL OR a.queue_name = workers.queue_name)
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
         GROUP BY 1, 2)
    SELECT coalesce(h.locked_by, d.handled_by), coalesce(h.name, d.name), coalesce(h.leased, 0), h.leased_since, h.lease_ends_at,
           coalesce(d.finished, 0), coalesce(d.dead, 0), coalesce(d.finished, 0) / date_part('epoch', workers.period), d.run_avg,
           greatest(h.last_at, d.last_at)
      FROM held h FULL JOIN done d ON d.handled_by = h.locked_by AND d.name = h.name
     ORDER BY 3 DESC, 6 DESC, 1, 2;
END $$;
COMMENT ON FUNCTION messages.workers(text, interval) IS
    'Who leases now or finished something within the period, by the name that each gave itself: how many messages it holds, since when and until when, how many it finished, and how many of those died. Looks at the 10,000 leases of a queue that end first, at fewer where there are many queues, or where others expire sooner. PQ001: unknown queue; PQ004: a period of less than a second or more than a day.';
