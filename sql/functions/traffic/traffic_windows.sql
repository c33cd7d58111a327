CREATE OR REPLACE FUNCTION messages.traffic_windows(
    first_at timestamptz DEFAULT NULL,
    end_at   timestamptz DEFAULT NULL,
    margin   interval    DEFAULT '1 minute',
    settle   interval    DEFAULT '1 hour'
) RETURNS TABLE (grain text, grain_first_at timestamptz, grain_end_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    begins timestamptz := (SELECT p.begins_at FROM messages.archive_policy p);
    since  timestamptz := traffic_windows.first_at;
BEGIN
    PERFORM messages.check_duration('margin', traffic_windows.margin, '0', '1 day', required => true);
    PERFORM messages.check_duration('settle', traffic_windows.settle, '0', '31 days', required => true);
    IF traffic_windows.first_at >= traffic_windows.end_at THEN
        RAISE EXCEPTION 'the time from % to % is empty', traffic_windows.first_at, traffic_windows.end_at
            USING ERRCODE = 'PQ004', HINT = 'Give an end that is later than the beginning.';
    ELSIF traffic_windows.end_at <= begins THEN
        RAISE EXCEPTION 'the archive begins at %', begins
            USING ERRCODE = 'PQ009', HINT = 'It was installed then, or retention removed what is older. Ask for a later time.';
    END IF;
    IF since IS NULL THEN
        -- What ended `settle` before a run began was counted by it, with all that came late.
        SELECT max(least(r.started_at - traffic_windows.settle, (r.summary ->> 'up_to')::timestamptz)) INTO since
          FROM messages.pipeline_run r WHERE r.pipeline = 'rollup' AND r.summary ? 'up_to';
    END IF;
    RETURN QUERY
    SELECT g.grain, date_trunc(g.grain, greatest(since, begins, messages.traffic_kept_since(g.grain)), 'UTC'),
           date_trunc(g.grain, least(traffic_windows.end_at, moment - traffic_windows.margin), 'UTC')
      FROM unnest(ARRAY['minute', 'hour', 'day']) AS g (grain);
END $$;
COMMENT ON FUNCTION messages.traffic_windows(timestamptz, timestamptz, interval, interval) IS
    'The time to count in each grain, in whole buckets; there is nothing to count if it ends where it begins. Without first_at it begins settle before the last run. PQ009: older than the archive.';
