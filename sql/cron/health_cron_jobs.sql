CREATE OR REPLACE FUNCTION messages.health_cron_jobs() RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    home    text := messages.cron_database();
    last_by text;
    done    boolean;
    -- The cure needs a superuser. A role that can log in gets the jobs; messages_owner can only be shown them.
    shown   text := CASE WHEN current_user = 'messages_owner' THEN 'SELECT messages.show_cron_jobs_to_owner()'
                         ELSE format($cure$SELECT cron.unschedule(jobid), cron.schedule_in_database(jobname, schedule, command, database, %L) FROM cron.job WHERE jobname LIKE 'messages:%%'$cure$, current_user) END;
BEGIN
    IF home IS DISTINCT FROM current_database() THEN
        RETURN QUERY SELECT 'ok', CASE WHEN home IS NULL THEN 'pg_cron is not loaded: Airflow does the upkeep'
            ELSE format('pg_cron lives in %s: jobs there or Airflow do the upkeep', coalesce('database ' || nullif(home, ''), 'another database')) END, NULL;
        RETURN;
    END IF;
    SELECT u.done_by, u.finished_at > clock_timestamp() - interval '3 minutes' INTO last_by, done FROM messages.upkeep_run u;
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN
        IF NOT has_schema_privilege('cron', 'USAGE') THEN
            RETURN QUERY SELECT 'warning', format('role %s may not look at the jobs of pg_cron', current_user),
                CASE WHEN current_user = 'messages_owner' THEN shown
                     ELSE format('GRANT USAGE ON SCHEMA cron TO %I', current_user) END;
            RETURN;
        END IF;
        RETURN QUERY EXECUTE $jobs$
            WITH job AS (
                SELECT t.task, j.jobid, j.active, j.username, j.username = ANY (SELECT r.rolname FROM pg_roles r WHERE r.rolsuper) AS all_powerful
                  FROM (VALUES ('upkeep', 'messages[.]upkeep[(]'), ('schedules', 'messages[.]run_schedules[(]')) AS t (task, calls)
                  JOIN cron.job j ON j.jobname = 'messages:' || t.task OR j.command ~ t.calls
                 WHERE j.database = current_database()),
            task AS (
                SELECT t.task, count(j.jobid) AS jobs, count(*) FILTER (WHERE j.active) AS at_work,
                       min(j.jobid) AS oldest, max(j.jobid) FILTER (WHERE j.active) AS newest
                  FROM (VALUES ('upkeep'), ('schedules')) AS t (task) LEFT JOIN job j USING (task) GROUP BY t.task),
            last_run AS (
                SELECT DISTINCT ON (d.jobid) d.jobid, d.status, split_part(d.return_message, E'\n', 1) AS said
                  FROM (SELECT * FROM cron.job_run_details ORDER BY runid DESC LIMIT 1000) d
                 WHERE d.status IN ('succeeded', 'failed') ORDER BY d.jobid, d.runid DESC),
            found (place, severity, finding, cure) AS (
                SELECT 0, 'critical', format('pg_cron job %s (%s) runs as the superuser %s, and whoever owns our functions may say what it does', j.jobid, j.task, j.username),
                       format('SELECT cron.unschedule(%s); SELECT messages.install_cron(run_as => ''messages_cron'')', j.jobid)
                  FROM job j WHERE j.all_powerful
                UNION ALL
                SELECT 1, 'critical', format('the last run of pg_cron job %s (%s) failed: %s', j.jobid, j.task, left(l.said, 200)),
                       messages.cron_cure()
                  FROM job j JOIN last_run l USING (jobid) WHERE l.status = 'failed' AND j.active
                UNION ALL
                SELECT 2, 'warning', format('pg_cron has no job for %s', t.task), messages.cron_cure() FROM task t WHERE t.jobs = 0
                UNION ALL
                SELECT 3, 'warning', format('pg_cron job %s (%s) is not active', t.oldest, t.task), format('SELECT cron.alter_job(%s, active => true)', t.oldest)
                  FROM task t WHERE t.jobs > 0 AND t.at_work = 0
                UNION ALL
                SELECT 4, 'warning', format('%s active jobs of pg_cron do the %s', t.at_work, t.task), format('SELECT cron.unschedule(%s)', t.newest)
                  FROM task t WHERE t.at_work > 1
                UNION ALL
                SELECT 5, 'ok', format('pg_cron job %s does the upkeep as %s', j.jobid, j.username), NULL FROM job j WHERE j.task = 'upkeep')
            SELECT f.severity, string_agg(f.finding, '; '), min(f.cure) FROM found f
             WHERE EXISTS (SELECT FROM job) GROUP BY f.place, f.severity ORDER BY f.place LIMIT 1 $jobs$;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- No job that this role can see: the row security of pg_cron shows each role its own jobs only.
    RETURN QUERY SELECT found.severity, found.finding, found.cure FROM (VALUES
        (done AND last_by = 'pg_cron' AND EXISTS (SELECT FROM pg_policy p WHERE p.polname = current_user AND p.polrelid = to_regclass('cron.job')),
         'ok', 'pg_cron does the upkeep in a job that is not called messages:upkeep', NULL),
        (done AND last_by = 'pg_cron', 'warning', format('pg_cron does the upkeep in a job that role %s cannot see', current_user), shown),
        (done, 'ok', format('pg_cron has no job for the upkeep; %s does it', last_by), NULL),
        (true, 'warning', 'pg_cron has no job for the upkeep, and nobody else does it', messages.cron_cure())
    ) AS found (applies, severity, finding, cure) WHERE found.applies LIMIT 1;
END $$;
COMMENT ON FUNCTION messages.health_cron_jobs() IS
    'A check of health(). Whether pg_cron has one active job for the upkeep and one for the schedules, whose they are, and how their last runs ended.';
