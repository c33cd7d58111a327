CREATE OR REPLACE FUNCTION messages.traffic_report(
    queue_name text        DEFAULT NULL,
    grain      text        DEFAULT 'hour',
    first_at   timestamptz DEFAULT NULL,
    end_at     timestamptz DEFAULT NULL
) RETURNS SETOF messages.traffic
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    IF traffic_report.queue_name IS NOT NULL THEN
        PERFORM messages.check_access(traffic_report.queue_name, 'observe');
    END IF;
    IF traffic_report.grain IS NULL OR traffic_report.grain NOT IN ('minute', 'hour', 'day') THEN
        RAISE EXCEPTION 'grain is %', coalesce(quote_literal(left(traffic_report.grain, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give minute, hour or day.';
    END IF;
    RETURN QUERY
    SELECT t.* FROM messages.traffic t
     WHERE t.grain = traffic_report.grain
       AND (traffic_report.queue_name IS NULL OR t.queue_name = traffic_report.queue_name COLLATE "default")
       AND (traffic_report.first_at IS NULL OR t.bucket_at >= traffic_report.first_at)
       AND (traffic_report.end_at IS NULL OR t.bucket_at < traffic_report.end_at)
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR t.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY t.bucket_at, t.queue_name;
    IF NOT FOUND AND traffic_report.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(traffic_report.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.traffic_report(text, text, timestamptz, timestamptz) IS
    'Arrivals, completions, waiting and running times by minute, hour or day, as the pipeline rollup counted them: of one queue, or of those that this login may observe. PQ001: unknown queue, of which nothing was counted.';
