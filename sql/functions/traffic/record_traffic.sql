CREATE OR REPLACE FUNCTION messages.record_traffic(run_id text, rows jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    unit     interval := '1 microsecond';
    wrong    record;
    recorded bigint;
BEGIN
    PERFORM messages.check_run_begun(record_traffic.run_id, 'rollup');
    IF jsonb_typeof(record_traffic.rows) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'the rows are not a JSON array' USING ERRCODE = 'PQ004', HINT = 'Give an array of objects.';
    END IF;
    SELECT t.grain, t.bucket_at INTO wrong
      FROM jsonb_to_recordset(record_traffic.rows) AS t (grain text, bucket_at timestamptz)
     WHERE (t.grain IN ('minute', 'hour', 'day') AND t.bucket_at = date_trunc(t.grain, t.bucket_at, 'UTC')
            AND t.bucket_at + ('1 ' || t.grain)::interval <= clock_timestamp()) IS NOT TRUE
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the bucket % at % is not whole, or has not ended', quote_nullable(left(wrong.grain, 20)), wrong.bucket_at
            USING ERRCODE = 'PQ004', HINT = 'Give whole minutes, hours or days in UTC that are over.';
    END IF;
    -- The archive only gains rows until retention, an export or a purge takes some away: the count with more messages is
    -- the newer one, whichever comes last. In one order, so that two runs cannot deadlock.
    INSERT INTO messages.traffic AS t (grain, bucket_at, queue_name, arrivals, success, failed, rejected, lock_expired, expired,
        attempts, attempts_max, wait_p50, wait_p95, wait_p99, wait_max, run_p50, run_p95, run_p99, run_max, dead_causes, run_id)
    SELECT n.grain, n.bucket_at, n.queue_name, n.arrivals, n.success, n.failed, n.rejected, n.lock_expired, n.expired,
           n.attempts, n.attempts_max, n.wait_p50 * unit, n.wait_p95 * unit, n.wait_p99 * unit, n.wait_max * unit,
           n.run_p50 * unit, n.run_p95 * unit, n.run_p99 * unit, n.run_max * unit, coalesce(n.dead_causes, '[]'), record_traffic.run_id
      FROM jsonb_to_recordset(record_traffic.rows) AS n (grain text, bucket_at timestamptz, queue_name text, arrivals bigint,
               success bigint, failed bigint, rejected bigint, lock_expired bigint, expired bigint, attempts bigint, attempts_max integer,
               wait_p50 bigint, wait_p95 bigint, wait_p99 bigint, wait_max bigint,
               run_p50 bigint, run_p95 bigint, run_p99 bigint, run_max bigint, dead_causes jsonb)
     WHERE coalesce(n.bucket_at >= date_trunc(n.grain, messages.traffic_kept_since(n.grain), 'UTC'), true)
     ORDER BY n.grain, n.bucket_at, n.queue_name
    ON CONFLICT (grain, bucket_at, queue_name) DO UPDATE SET
        arrivals = greatest(t.arrivals, excluded.arrivals),
        (success, failed, rejected, lock_expired, expired, attempts, attempts_max, wait_p50, wait_p95, wait_p99, wait_max,
         run_p50, run_p95, run_p99, run_max, dead_causes, run_id, recorded_at)
      = (SELECT newer.success, newer.failed, newer.rejected, newer.lock_expired, newer.expired, newer.attempts, newer.attempts_max,
                newer.wait_p50, newer.wait_p95, newer.wait_p99, newer.wait_max, newer.run_p50, newer.run_p95, newer.run_p99,
                newer.run_max, newer.dead_causes, newer.run_id, clock_timestamp()
           FROM (SELECT excluded.* UNION ALL SELECT t.*) newer
          ORDER BY newer.completions DESC LIMIT 1)
     WHERE excluded.completions > t.completions OR excluded.arrivals > t.arrivals;
    GET DIAGNOSTICS recorded = ROW_COUNT;
    RETURN recorded;
END $$;
COMMENT ON FUNCTION messages.record_traffic(text, jsonb) IS
    'Records counted buckets and returns how many were new or grew. Of two counts of one bucket the one with more messages is kept, so that the same or older numbers change nothing. Durations in microseconds. PQ004: an unknown run, or a bucket that is not whole or has not ended.';
