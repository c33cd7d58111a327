CREATE OR REPLACE FUNCTION messages.queue_sparklines(
    queue_names text[],
    since       timestamptz DEFAULT NULL,
    until       timestamptz DEFAULT NULL,
    step        interval    DEFAULT '1 minute'
) RETURNS TABLE (queue_name text, first_at timestamptz, arrivals bigint[], success bigint[], dead bigint[], depth bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    steps record;
BEGIN
    PERFORM messages.check_number('the number of queues', coalesce(cardinality(queue_sparklines.queue_names), 0), 0, 500);
    SELECT * INTO steps FROM messages.history_steps(queue_sparklines.since, queue_sparklines.until, queue_sparklines.step);
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    bucket AS MATERIALIZED (
        SELECT b.at, b.at <= p.counted_at AND b.at + queue_sparklines.step > p.begun_at AS known,
               b.at <= p.recorded_at AND b.at + queue_sparklines.step > p.begun_at
               AND (b.at < k.since OR EXISTS (SELECT FROM messages.history n WHERE n.queue_name = '' AND n.grain = 'minute'
                                           AND n.bucket_at >= b.at AND n.bucket_at < b.at + queue_sparklines.step)) AS seen
          FROM generate_series(steps.first_at, steps.end_at - interval '1 microsecond', queue_sparklines.step) AS b (at)
         CROSS JOIN messages.history_progress p JOIN kept k ON k.grain = 'minute'),
    wanted AS MATERIALIZED (
        SELECT q.queue_name, o.depth
          FROM messages.queue q
          -- What has not changed since the beginning was recorded before it.
          LEFT JOIN LATERAL (
            SELECT l.depth FROM unnest(ARRAY['minute', 'hour', 'day']) AS g (grain)
             CROSS JOIN LATERAL (
                SELECT h.bucket_at, h.depth FROM messages.history h
                 WHERE h.queue_name = q.queue_name AND h.grain = g.grain AND h.bucket_at <= steps.first_at - ('1 ' || g.grain)::interval AND h.depth IS NOT NULL
                 ORDER BY h.bucket_at DESC LIMIT 1) l
             ORDER BY l.bucket_at DESC LIMIT 1) o ON true
         WHERE q.queue_name = ANY (queue_sparklines.queue_names)
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))),
    recorded AS MATERIALIZED (
        SELECT h.queue_name, date_bin(queue_sparklines.step, h.bucket_at, steps.origin) AS at, sum(h.arrivals)::bigint AS arrivals,
               sum(h.success)::bigint AS success, sum(h.failed + h.rejected + h.lock_expired + h.expired)::bigint AS dead,
               (array_agg(h.depth ORDER BY h.bucket_at DESC) FILTER (WHERE h.depth IS NOT NULL))[1] AS depth
          FROM kept k
          JOIN messages.history h
            ON h.grain = k.grain AND h.bucket_at >= greatest(steps.first_at, k.since) AND h.bucket_at < least(steps.end_at, k.until)
         WHERE h.queue_name = ANY (queue_sparklines.queue_names)
         GROUP BY 1, 2),
    part AS (
        SELECT w.queue_name, b.*, n.arrivals, n.success, n.dead, n.depth, w.depth AS before,
               count(n.depth) OVER (PARTITION BY w.queue_name ORDER BY b.at) AS change
          FROM wanted w CROSS JOIN bucket b LEFT JOIN recorded n ON n.queue_name = w.queue_name AND n.at = b.at),
    filled AS (
        SELECT p.*, coalesce(first_value(p.depth) OVER (PARTITION BY p.queue_name, p.change ORDER BY p.at), p.before, 0) AS level FROM part p)
    SELECT f.queue_name, min(f.at), array_agg(CASE WHEN f.known THEN coalesce(f.arrivals, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.known THEN coalesce(f.success, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.known THEN coalesce(f.dead, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.seen THEN f.level END ORDER BY f.at)
      FROM filled f GROUP BY f.queue_name;
END $$;
COMMENT ON FUNCTION messages.queue_sparklines(text[], timestamptz, timestamptz, interval) IS
    'The history of up to 500 queues, one row for each with a number for each step; unknown queues, and those that this login may not observe, are left out. PQ004: too many queues or steps, or a bad step.';
