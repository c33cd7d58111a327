CREATE OR REPLACE FUNCTION messages.purge_cron_history(older_than interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    purged bigint;
BEGIN
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') IS NOT TRUE THEN
        RETURN 0;
    END IF;
    -- pg_cron keeps a row for each run for ever; row security limits this to the jobs that open_cron() shows.
    EXECUTE $purge$
        DELETE FROM cron.job_run_details d USING cron.job j
         WHERE j.jobid = d.jobid AND j.jobname LIKE 'messages:%' AND d.end_time < clock_timestamp() - $1
    $purge$ USING older_than;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;
COMMENT ON FUNCTION messages.purge_cron_history(interval) IS
    'Internal. Deletes the run history of our own pg_cron jobs and returns how many rows.';
