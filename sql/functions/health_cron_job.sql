CREATE OR REPLACE FUNCTION messages.health_cron_job() RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    home     text := current_setting('cron.database_name', true);
    last_by  text;
    late     boolean := true;
    job      record;
    jobs     bigint;
    last_run record;
    -- As a superuser: what pg_cron does for the owner of the functions should run as the owner.
    as_owner text := format($job$SELECT cron.unschedule(jobid), cron.schedule_in_database('messages:upkeep', '* * * * *', 'SELECT messages.upkeep()', database, %L) FROM cron.job WHERE jobname = 'messages:upkeep'$job$, current_user);
BEGIN
    SELECT u.done_by, u.finished_at < clock_timestamp() - interval '3 minutes' INTO last_by, late FROM messages.upkeep_run u;
    IF home IS DISTINCT FROM current_database() THEN
        RETURN QUERY SELECT 'ok', CASE WHEN home IS NULL THEN 'pg_cron is not loaded: Airflow does the upkeep'
                                       ELSE format('pg_cron lives in database %s: a job there or Airflow does the upkeep', home) END, NULL;
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN
        jobs := 0;
    ELSIF NOT has_schema_privilege('cron', 'USAGE') OR NOT has_table_privilege('cron.job', 'SELECT') THEN
        RETURN QUERY SELECT 'warning', format('role %s may not look at the jobs of pg_cron', current_user),
                            format('GRANT USAGE ON SCHEMA cron TO %1$I; GRANT SELECT ON cron.job, cron.job_run_details TO %1$I', current_user);
        RETURN;
    ELSE
        EXECUTE $jobs$
            SELECT j.jobid, j.active, j.username::text, r.rolsuper, count(*) OVER (), max(j.jobid) FILTER (WHERE j.active) OVER () AS newest,
                   count(*) FILTER (WHERE j.active) OVER () AS at_work
              FROM cron.job j LEFT JOIN pg_roles r ON r.rolname = j.username
             WHERE j.database = current_database() AND (j.jobname = 'messages:upkeep' OR j.command ~ 'messages\.upkeep\(')
             ORDER BY j.active DESC, j.jobid LIMIT 1 $jobs$ INTO job;
        jobs := coalesce(job.count, 0);
    END IF;
    IF jobs = 0 THEN
        -- Row security of pg_cron shows a role its own jobs only.
        RETURN QUERY SELECT
            CASE WHEN coalesce(late, true) OR last_by = 'pg_cron' THEN 'warning' ELSE 'ok' END,
            CASE WHEN last_by = 'pg_cron' AND NOT late THEN format('pg_cron does the upkeep, in a job of another role that role %s cannot see', current_user)
                 WHEN coalesce(late, true) THEN 'pg_cron has no job for the upkeep, and nobody else does it'
                 ELSE format('pg_cron has no job for the upkeep; %s does it', last_by) END,
            CASE WHEN last_by = 'pg_cron' AND NOT late THEN as_owner
                 WHEN coalesce(late, true) THEN 'SELECT messages.install_cron()' END;
        RETURN;
    END IF;
    IF has_table_privilege('cron.job_run_details', 'SELECT') THEN
        EXECUTE $runs$
            SELECT d.status, split_part(d.return_message, E'\n', 1) AS said, d.end_time
              FROM (SELECT * FROM cron.job_run_details ORDER BY runid DESC LIMIT 1000) d
             WHERE d.jobid = $1 AND d.status IN ('succeeded', 'failed') ORDER BY d.runid DESC LIMIT 1 $runs$
        INTO last_run USING job.jobid;
    END IF;
    RETURN QUERY SELECT found.* FROM (VALUES
        (NOT job.active, 'warning', format('job %s of pg_cron is not active', job.jobid),
         format('SELECT cron.alter_job(%s, active => true)', job.jobid)),
        (last_run.status = 'failed', 'critical', format('the last run of job %s failed: %s', job.jobid, left(last_run.said, 200)),
         'SELECT messages.install_cron()'),
        (job.at_work > 1, 'warning', format('%s jobs of pg_cron do the upkeep', job.at_work), format('SELECT cron.unschedule(%s)', job.newest)),
        (job.rolsuper AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user), 'warning',
         format('job %s runs as superuser %s what role %s can change', job.jobid, job.username, current_user), as_owner),
        (true, 'ok', format('job %s of pg_cron does the upkeep as %s', job.jobid, job.username), NULL)
    ) AS found (applies, severity, finding, cure) CROSS JOIN LATERAL (SELECT found.severity, found.finding, found.cure) AS one
    WHERE found.applies LIMIT 1;
END $$;
COMMENT ON FUNCTION messages.health_cron_job() IS
    'Internal, of health(). Whether pg_cron has one active job for the upkeep, whose it is, and how its last run ended.';
