CREATE OR REPLACE FUNCTION messages.roll_up_bucket(from_grain text, to_grain text, first_at timestamptz, after_queue text, max_queues integer)
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    end_at timestamptz := first_at + ('1 ' || to_grain)::interval;
    names  text[];
BEGIN
    names := ARRAY(
        SELECT DISTINCT h.queue_name FROM messages.history h
         WHERE h.grain = from_grain AND h.bucket_at >= first_at AND h.bucket_at < end_at AND h.queue_name > after_queue
         ORDER BY h.queue_name LIMIT max_queues);
    DELETE FROM messages.history h WHERE h.queue_name = ANY (names) AND h.grain = to_grain AND h.bucket_at = first_at;
    WITH part AS MATERIALIZED (
        SELECT h.* FROM messages.history h
         WHERE h.queue_name = ANY (names) AND h.grain = from_grain AND h.bucket_at >= first_at AND h.bucket_at < end_at),
    waits AS (
        SELECT p.queue_name, messages.sum_durations(array_agg(ARRAY[p.waits[n][1], p.waits[n][2]])) AS waits
          FROM part p CROSS JOIN LATERAL generate_subscripts(p.waits, 1) AS n GROUP BY 1),
    runs AS (
        SELECT p.queue_name, messages.sum_durations(array_agg(ARRAY[p.runs[n][1], p.runs[n][2]])) AS runs
          FROM part p CROSS JOIN LATERAL generate_subscripts(p.runs, 1) AS n GROUP BY 1),
    last AS (
        SELECT DISTINCT ON (p.queue_name) p.* FROM part p WHERE p.depth IS NOT NULL ORDER BY p.queue_name, p.bucket_at DESC),
    total AS (
        SELECT p.queue_name, max(p.depth_max) AS depth_max, sum(p.arrivals) AS arrivals, sum(p.success) AS success, sum(p.failed) AS failed,
               sum(p.rejected) AS rejected, sum(p.lock_expired) AS lock_expired, sum(p.expired) AS expired, sum(p.cancelled) AS cancelled,
               sum(p.attempts) AS attempts, max(p.wait_max) AS wait_max, max(p.run_max) AS run_max
          FROM part p GROUP BY p.queue_name)
    INSERT INTO messages.history (queue_name, grain, bucket_at, depth, depth_max, ready, leased, delayed, dead, oldest_at,
        arrivals, success, failed, rejected, lock_expired, expired, cancelled, attempts, wait_max, run_max, waits, runs)
    SELECT n.queue_name, to_grain, first_at, l.depth, n.depth_max, l.ready, l.leased, l.delayed, l.dead, l.oldest_at,
           n.arrivals, n.success, n.failed, n.rejected, n.lock_expired, n.expired, n.cancelled, n.attempts, n.wait_max, n.run_max, w.waits, r.runs
      FROM total n LEFT JOIN last l USING (queue_name) LEFT JOIN waits w USING (queue_name) LEFT JOIN runs r USING (queue_name);
    INSERT INTO messages.history_cause AS t (queue_name, grain, bucket_at, result, fingerprint, messages)
    SELECT c.queue_name, to_grain, first_at, c.result, c.fingerprint, sum(c.messages) FROM messages.history_cause c
     WHERE c.queue_name = ANY (names) AND c.grain = from_grain AND c.bucket_at >= first_at AND c.bucket_at < end_at
     GROUP BY 1, 4, 5
    ON CONFLICT (queue_name, grain, bucket_at, result, fingerprint) DO UPDATE SET messages = excluded.messages;
    RETURN names;
END $$;
COMMENT ON FUNCTION messages.roll_up_bucket(text, text, timestamptz, text, integer) IS
    'Makes one hour of its minutes, or one day of its hours, for the next queues by name, and returns their names. Repeating it changes nothing.';
