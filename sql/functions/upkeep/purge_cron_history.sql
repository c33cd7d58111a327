CREATE OR REPLACE FUNCTION messages.purge_cron_history(max_runs integer DEFAULT 50000) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    purged bigint;
BEGIN
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') IS NOT TRUE OR has_table_privilege('cron.job', 'SELECT') IS NOT TRUE
       OR has_table_privilege('cron.job_run_details', 'SELECT') IS NOT TRUE OR has_table_privilege('cron.job_run_details', 'DELETE') IS NOT TRUE THEN
        RETURN 0;
    END IF;
    -- pg_cron keeps a row for each run forever, also those of removed jobs, and those without an end, which a restart of
    -- the server leaves behind. Row security shows the login of the jobs its own, and messages_owner those of show_cron_jobs_to_owner().
    EXECUTE $purge$
        WITH ours AS MATERIALIZED (
            SELECT d.runid, d.end_time FROM cron.job_run_details d
             WHERE (d.database = current_database() AND (d.command = 'SELECT messages.upkeep()'
                                                         OR d.command LIKE 'DO $upkeep$ % messages.upkeep(%); END $upkeep$'))
                OR d.jobid IN (SELECT j.jobid FROM cron.job j WHERE j.jobname LIKE 'messages:upkeep%' AND j.database = current_database()))
        DELETE FROM cron.job_run_details WHERE runid = ANY (ARRAY(
            SELECT o.runid FROM ours o
             WHERE o.runid <= (SELECT max(past.runid) FROM ours past WHERE past.end_time < clock_timestamp() - interval '3 days')
             ORDER BY o.runid LIMIT $1))
    $purge$ USING max_runs;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;
COMMENT ON FUNCTION messages.purge_cron_history(integer) IS
    'Deletes up to max_runs runs of our own pg_cron jobs, including removed ones, that are older than three days and that the caller may see, and returns how many. The job of pg_cron calls it as its login, and the upkeep as the owner of the schema.';
