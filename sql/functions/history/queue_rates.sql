CREATE OR REPLACE FUNCTION messages.queue_rates(
    queue_names text[]   DEFAULT NULL,
    period      interval DEFAULT '5 minutes'
) RETURNS TABLE (queue_name text, arrivals bigint, success bigint, dead bigint, run_max interval, wait_max interval, seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    counted timestamptz := (SELECT date_trunc('minute', g.counted_at, 'UTC') FROM messages.history_progress g);
BEGIN
    PERFORM messages.check_duration('period', queue_rates.period, '1 minute', '1 day', required => true);
    RETURN QUERY
    SELECT h.queue_name, sum(h.arrivals)::bigint, sum(h.success)::bigint,
           sum(h.failed + h.rejected + h.lock_expired + h.expired)::bigint, max(h.run_max), max(h.wait_max),
           date_part('epoch', queue_rates.period)
      FROM messages.history h
     -- The last minute is not completed yet.
     WHERE h.queue_name <> '' AND h.grain = 'minute' AND h.bucket_at >= counted - queue_rates.period AND h.bucket_at < counted
       AND (queue_rates.queue_names IS NULL OR h.queue_name = ANY (queue_rates.queue_names))
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR h.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY h.queue_name;
END $$;
COMMENT ON FUNCTION messages.queue_rates(text[], interval) IS
    'What went through each queue in the last whole minutes that the upkeep counted: divide by seconds for rates. Queues without a row had no traffic. PQ004: a period of less than a minute or more than a day.';
