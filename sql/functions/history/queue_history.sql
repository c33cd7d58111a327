CREATE OR REPLACE FUNCTION messages.queue_history(
    queue_name text,
    since      timestamptz DEFAULT NULL,
    until      timestamptz DEFAULT NULL,
    step       interval    DEFAULT '1 minute'
) RETURNS TABLE (
    bucket_at timestamptz, depth bigint, depth_max bigint, ready bigint, leased bigint, delayed bigint, dead bigint, oldest_age interval,
    arrivals bigint, completions bigint, success bigint, failed bigint, rejected bigint, lock_expired bigint, expired bigint, cancelled bigint,
    attempts bigint, wait_p50 interval, wait_p95 interval, wait_p99 interval, wait_max interval,
    run_p50 interval, run_p95 interval, run_p99 interval, run_max interval
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    steps record;
BEGIN
    PERFORM messages.check_access(queue_history.queue_name, 'observe');
    IF queue_history.queue_name IS NULL OR NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = queue_history.queue_name COLLATE "default")
       AND NOT EXISTS (SELECT FROM messages.history h WHERE h.queue_name = nullif(queue_history.queue_name, '') COLLATE "default") THEN
        PERFORM messages.raise_unknown_queue(queue_history.queue_name);
    END IF;
    SELECT * INTO steps FROM messages.history_steps(queue_history.since, queue_history.until, queue_history.step);
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    progress AS (SELECT g.begun_at, g.counted_at, g.recorded_at FROM messages.history_progress g),
    recorded AS MATERIALIZED (
        SELECT date_bin(queue_history.step, h.bucket_at, steps.origin) AS at, h.*
          FROM kept k
          JOIN messages.history h
            ON h.grain = k.grain AND h.bucket_at >= greatest(steps.first_at, k.since) AND h.bucket_at < least(steps.end_at, k.until)
         WHERE h.queue_name = queue_history.queue_name COLLATE "default"),
    total AS (
        SELECT n.at, max(n.depth_max) AS depth_max, sum(n.arrivals)::bigint AS arrivals, sum(n.success)::bigint AS success,
               sum(n.failed)::bigint AS failed, sum(n.rejected)::bigint AS rejected, sum(n.lock_expired)::bigint AS lock_expired,
               sum(n.expired)::bigint AS expired, sum(n.cancelled)::bigint AS cancelled,
               sum(n.attempts)::bigint AS attempts, max(n.wait_max) AS wait_max, max(n.run_max) AS run_max
          FROM recorded n GROUP BY n.at),
    waits AS (
        SELECT n.at, messages.sum_durations(array_agg(ARRAY[n.waits[i][1], n.waits[i][2]])) AS waits
          FROM recorded n CROSS JOIN LATERAL generate_subscripts(n.waits, 1) AS i GROUP BY 1),
    runs AS (
        SELECT n.at, messages.sum_durations(array_agg(ARRAY[n.runs[i][1], n.runs[i][2]])) AS runs
          FROM recorded n CROSS JOIN LATERAL generate_subscripts(n.runs, 1) AS i GROUP BY 1),
    last AS (
        SELECT o.*, row_number() OVER (ORDER BY o.at) AS change FROM (
            SELECT DISTINCT ON (n.at) n.at, n.depth, n.ready, n.leased, n.delayed, n.dead, n.oldest_at
              FROM recorded n WHERE n.depth IS NOT NULL ORDER BY n.at, n.bucket_at DESC) o),
    -- What has not changed since the beginning was recorded before it.
    before AS (
        SELECT o.* FROM unnest(ARRAY['minute', 'hour', 'day']) AS g (grain)
         CROSS JOIN LATERAL (
            SELECT h.* FROM messages.history h
             WHERE h.queue_name = queue_history.queue_name COLLATE "default" AND h.grain = g.grain AND h.bucket_at <= steps.first_at - ('1 ' || g.grain)::interval AND h.depth IS NOT NULL
             ORDER BY h.bucket_at DESC LIMIT 1) o
         ORDER BY o.bucket_at DESC LIMIT 1),
    bucket AS (
        SELECT b.at AS bucket_at, t.depth_max, t.arrivals, t.success, t.failed, t.rejected, t.lock_expired, t.expired, t.cancelled, t.attempts,
               t.wait_max, t.run_max, w.waits, r.runs, count(l.at) OVER (ORDER BY b.at) AS change,
               b.at <= p.counted_at AND b.at + queue_history.step > p.begun_at AS known,
               -- Whether an upkeep looked is known for as long as minutes are kept.
               b.at <= p.recorded_at AND b.at + queue_history.step > p.begun_at
               AND (b.at < k.since OR EXISTS (SELECT FROM messages.history n WHERE n.queue_name = '' AND n.grain = 'minute'
                                           AND n.bucket_at >= b.at AND n.bucket_at < b.at + queue_history.step)) AS seen,
               least(b.at + queue_history.step, p.recorded_at) AS ends_at
          FROM generate_series(steps.first_at, steps.end_at - interval '1 microsecond', queue_history.step) AS b (at)
         CROSS JOIN progress p JOIN kept k ON k.grain = 'minute'
          LEFT JOIN total t ON t.at = b.at LEFT JOIN waits w ON w.at = b.at LEFT JOIN runs r ON r.at = b.at LEFT JOIN last l ON l.at = b.at),
    level AS (
        SELECT l.change, l.depth, l.ready, l.leased, l.delayed, l.dead, l.oldest_at FROM last l
        UNION ALL
        SELECT 0, coalesce(o.depth, 0), coalesce(o.ready, 0), coalesce(o.leased, 0), coalesce(o.delayed, 0), coalesce(o.dead, 0), o.oldest_at
          FROM (VALUES (true)) AS one (row) LEFT JOIN before o ON true)
    SELECT b.bucket_at, l.depth, CASE WHEN b.seen THEN greatest(b.depth_max, l.depth) END, l.ready, l.leased, l.delayed, l.dead,
           CASE WHEN l.oldest_at IS NOT NULL THEN greatest(b.ends_at - l.oldest_at, '0') END,
           CASE WHEN b.known THEN coalesce(b.arrivals, 0) END,
           CASE WHEN b.known THEN coalesce(b.success + b.failed + b.rejected + b.lock_expired + b.expired + b.cancelled, 0) END,
           CASE WHEN b.known THEN coalesce(b.success, 0) END, CASE WHEN b.known THEN coalesce(b.failed, 0) END,
           CASE WHEN b.known THEN coalesce(b.rejected, 0) END, CASE WHEN b.known THEN coalesce(b.lock_expired, 0) END,
           CASE WHEN b.known THEN coalesce(b.expired, 0) END, CASE WHEN b.known THEN coalesce(b.cancelled, 0) END,
           CASE WHEN b.known THEN coalesce(b.attempts, 0) END,
           messages.duration_quantile(b.waits, 0.5, b.wait_max), messages.duration_quantile(b.waits, 0.95, b.wait_max),
           messages.duration_quantile(b.waits, 0.99, b.wait_max), b.wait_max,
           messages.duration_quantile(b.runs, 0.5, b.run_max), messages.duration_quantile(b.runs, 0.95, b.run_max),
           messages.duration_quantile(b.runs, 0.99, b.run_max), b.run_max
      FROM bucket b LEFT JOIN level l ON b.seen AND l.change = b.change
     ORDER BY b.bucket_at;
END $$;
COMMENT ON FUNCTION messages.queue_history(text, timestamptz, timestamptz, interval) IS
    'One row for each step from since (an hour ago) to until (now): the numbers of the queue at its end, what arrived and was archived in it, and percentiles, rounded up by at most 19 percent. Levels are NULL for steps without an upkeep; everything is NULL before the history begins and where it is not recorded yet: what went through a queue is counted a minute later. Steps begin at whole multiples since 2001-01-01 UTC, a Monday. Where the history is kept only by the hour or day, shorter steps are empty except the first of each hour or day. PQ001: unknown queue; PQ004: more than 10000 steps, or a step that is not whole minutes.';
