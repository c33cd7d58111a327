CREATE OR REPLACE FUNCTION messages.health_cron_history() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    ours  bigint := 0;
    total bigint := coalesce((SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c
                               WHERE c.relnamespace = to_regnamespace('cron') AND c.relname = 'job_run_details'), 0);
BEGIN
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') THEN
        -- Only the oldest runs are read, because the history of all jobs of the server may be long.
        EXECUTE $runs$
            SELECT count(*) FROM (SELECT * FROM cron.job_run_details ORDER BY runid LIMIT 10000) d
             WHERE d.database = current_database() AND d.command ~ 'messages[.]upkeep[(]'
               AND d.end_time < clock_timestamp() - interval '7 days' $runs$ INTO ours;
    END IF;
    RETURN QUERY SELECT
        CASE WHEN ours > 0 OR total > 1000000 THEN 'warning' ELSE 'ok' END,
        format('runs of ours older than 7 days in the history of pg_cron: %s; runs of all jobs: about %s', ours, total),
        CASE WHEN ours > 0 THEN 'SELECT messages.purge_cron_history() -- repeat until 0'
             WHEN total > 1000000 THEN 'DELETE FROM cron.job_run_details WHERE runid IN (SELECT runid FROM cron.job_run_details'
                 ' WHERE end_time < now() - interval ''7 days'' ORDER BY runid LIMIT 50000) -- repeat until 0, then: ANALYZE cron.job_run_details' END;
END $$;
COMMENT ON FUNCTION messages.health_cron_history() IS
    'A check of health(). Whether the run history of pg_cron is purged.';
