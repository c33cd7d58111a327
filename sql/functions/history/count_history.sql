CREATE OR REPLACE FUNCTION messages.count_history(from_xid bigint, to_xid bigint, from_id bigint, to_id bigint, earliest timestamptz)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    -- There are four classes for each doubling.
    per_doubling CONSTANT double precision := 4 / ln(2.0::double precision);
    moment       timestamptz := clock_timestamp();
    rows         bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT a.queue_name, date_bin('1 minute', least(a.archived_at, moment), 'epoch') AS at, a.result,
               CASE WHEN a.result NOT IN ('success', 'cancelled')
                    THEN coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)) END AS fingerprint,
               least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.waited) * 1000)))))::integer AS wait,
               least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.ran) * 1000)))))::integer AS run,
               count(*) AS messages, sum(a.attempts) AS attempts, max(a.waited) AS wait_max, max(a.ran) AS run_max
          FROM (SELECT f.queue_name, f.archived_at, f.result, f.fingerprint, f.details, f.failure, f.attempts, f.leased_at - f.created_at AS waited,
                       CASE WHEN f.result IN ('success', 'failed', 'rejected') THEN f.archived_at - f.leased_at END AS ran
                  FROM messages.archive_rows f
                 -- The time leaves out older partitions.
                 WHERE f.xid >= count_history.from_xid AND f.xid < count_history.to_xid
                   AND f.archived_at >= count_history.earliest AND isfinite(f.archived_at)
                -- Each difference is counted once.
                OFFSET 0) a
         GROUP BY 1, 2, 3, 4, 5, 6),
    arrived AS (
        SELECT o.queue_name, date_bin('1 minute', CASE WHEN o.created_at BETWEEN count_history.earliest AND moment THEN o.created_at ELSE moment END, 'epoch') AS at, count(*) AS messages
          FROM (SELECT m.queue_name, m.created_at FROM messages.message_rows m WHERE m.id > count_history.from_id AND m.id <= count_history.to_id
                UNION ALL
                SELECT a.queue_name, a.created_at FROM messages.archive_rows a
                 WHERE a.id > count_history.from_id AND a.id <= count_history.to_id AND a.archived_at >= count_history.earliest) o
         GROUP BY 1, 2),
    part AS (
        SELECT e.*, 0 AS arrivals FROM ended e
        UNION ALL
        SELECT a.queue_name, a.at, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, a.messages FROM arrived a),
    counted AS (
        INSERT INTO messages.history AS t (queue_name, grain, bucket_at, arrivals, success, failed, rejected, lock_expired, expired, cancelled,
                                           attempts, wait_max, run_max, waits, runs)
        SELECT p.queue_name, g.grain, CASE WHEN g.grain = 'all' THEN 'epoch' ELSE date_trunc(g.grain, p.at) END, sum(p.arrivals),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'success'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'failed'), 0),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'rejected'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'lock_expired'), 0),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'expired'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'cancelled'), 0),
               sum(p.attempts), max(p.wait_max), max(p.run_max),
               messages.sum_durations(array_agg(ARRAY[p.wait, p.messages]) FILTER (WHERE p.wait IS NOT NULL AND g.grain <> 'all')),
               messages.sum_durations(array_agg(ARRAY[p.run, p.messages]) FILTER (WHERE p.run IS NOT NULL AND g.grain <> 'all'))
          FROM part p CROSS JOIN unnest(ARRAY['minute', 'hour', 'day', 'all']) AS g (grain)
         WHERE g.grain <> 'all' OR EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = p.queue_name)
         GROUP BY 1, 2, 3
        ON CONFLICT (queue_name, grain, bucket_at) DO UPDATE SET
            arrivals = t.arrivals + excluded.arrivals, success = t.success + excluded.success, failed = t.failed + excluded.failed,
            rejected = t.rejected + excluded.rejected, lock_expired = t.lock_expired + excluded.lock_expired,
            expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled, attempts = t.attempts + excluded.attempts,
            wait_max = greatest(t.wait_max, excluded.wait_max), run_max = greatest(t.run_max, excluded.run_max),
            waits = messages.sum_durations(t.waits || excluded.waits), runs = messages.sum_durations(t.runs || excluded.runs)
        RETURNING t.grain),
    died AS (
        SELECT e.queue_name, e.at, e.result,
               CASE WHEN row_number() OVER (PARTITION BY e.queue_name, e.at ORDER BY sum(e.messages) DESC, e.fingerprint) <= 20
                    THEN e.fingerprint ELSE 'other' END AS fingerprint, sum(e.messages) AS messages
          FROM ended e WHERE e.fingerprint IS NOT NULL GROUP BY e.queue_name, e.at, e.result, e.fingerprint),
    causes AS (
        INSERT INTO messages.history_cause AS t (queue_name, grain, bucket_at, result, fingerprint, messages)
        SELECT d.queue_name, g.grain, date_trunc(g.grain, d.at), d.result, d.fingerprint, sum(d.messages)
          FROM died d CROSS JOIN unnest(ARRAY['minute', 'hour', 'day']) AS g (grain) GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (queue_name, grain, bucket_at, result, fingerprint) DO UPDATE SET messages = t.messages + excluded.messages)
    SELECT count(*) FILTER (WHERE c.grain = 'minute') INTO rows FROM counted c;
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.count_history(bigint, bigint, bigint, bigint, timestamptz) IS
    'Adds to the history what transactions of this range archived, and the messages of this range of ids, and returns how many minutes of a queue it wrote. The beginning of the transactions and the end of the ids belong to the range.';
