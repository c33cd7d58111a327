CREATE OR REPLACE FUNCTION messages.purge_cron_history(older_than interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    purged bigint;
BEGIN
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') IS NOT TRUE THEN
        RETURN 0;
    END IF;
    -- pg_cron keeps a row for each run for ever, also those of removed jobs, and those without an end, which a restart of
    -- the server leaves behind. Row security limits this to the runs that show_cron_jobs_to_owner() shows.
    EXECUTE $purge$
        WITH ours AS (
            SELECT d.runid, d.end_time FROM cron.job_run_details d
             WHERE (d.database = current_database() AND (d.command IN ('SELECT messages.upkeep()', 'SELECT messages.run_schedules()')
                                                         OR d.command LIKE 'DO $upkeep$ % messages.upkeep(); END $upkeep$'))
                OR d.jobid IN (SELECT j.jobid FROM cron.job j WHERE j.jobname LIKE 'messages:%'))
        DELETE FROM cron.job_run_details WHERE runid IN (
            SELECT o.runid FROM ours o
             WHERE o.runid <= (SELECT max(past.runid) FROM ours past WHERE past.end_time < clock_timestamp() - $1))
    $purge$ USING older_than;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;
COMMENT ON FUNCTION messages.purge_cron_history(interval) IS
    'Deletes the run history of our own pg_cron jobs, including removed ones, and returns how many rows.';
