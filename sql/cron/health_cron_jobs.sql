CREATE OR REPLACE FUNCTION messages.health_cron_jobs() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    home      text    := messages.cron_database();
    last      messages.upkeep_run;
    ago       text;
    done      boolean;
    -- How this login lets pg_cron do the upkeep.
    make_jobs text    := CASE WHEN (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
                              THEN 'SELECT messages.install_cron(run_as => ''messages_cron'')' ELSE 'SELECT messages.install_cron()' END;
    -- A launcher that was ended stays away until the server starts again; a session without a type is one that hides what it is.
    gone      boolean := NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.backend_type IS NULL OR a.backend_type = 'pg_cron launcher');
BEGIN
    SELECT * INTO last FROM messages.upkeep_run;
    -- A time that lies ahead is of a clock that was wrong.
    last.cron_at := CASE WHEN last.cron_at <= clock_timestamp() THEN last.cron_at END;
    last.finished_at := CASE WHEN last.finished_at <= clock_timestamp() THEN last.finished_at END;
    ago := date_trunc('second', clock_timestamp() - last.cron_at)::text;
    done := coalesce(last.cron_at > clock_timestamp() - interval '3 minutes', false);
    gone := gone AND (last.cron_at > clock_timestamp() - interval '90 seconds') IS NOT TRUE;
    IF home IS DISTINCT FROM current_database() THEN
        RETURN QUERY SELECT 'ok', CASE
            WHEN home IS NULL THEN 'pg_cron is not loaded: Airflow does the upkeep'
            ELSE format('pg_cron lives in %s: ', coalesce('database ' || nullif(home, ''), 'another database'))
                 || CASE WHEN done THEN format('it did the upkeep %s ago, as %s', ago, last.cron_role) ELSE 'jobs there or Airflow do the upkeep' END END, NULL;
        RETURN;
    END IF;
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') THEN
        RETURN QUERY EXECUTE $jobs$
            WITH job AS (
                SELECT j.jobid, j.jobname, j.active, j.username, r.rolsuper AS all_powerful,
                       j.command ~ 'messages[.]upkeep[(]' AND has_function_privilege(r.oid, 'messages.upkeep(boolean)', 'EXECUTE') AS is_upkeep
                  FROM cron.job j JOIN pg_roles r ON r.rolname = j.username
                 WHERE j.database = current_database() AND j.command ~ '[[:<:]]messages[.]'),
            upkeep AS (SELECT * FROM job j WHERE j.is_upkeep),
            failed AS (
                SELECT j.*, l.said
                  FROM (SELECT DISTINCT ON (d.jobid) d.jobid, d.status, left(split_part(d.return_message, E'\n', 1), 200) AS said
                          FROM (SELECT * FROM cron.job_run_details ORDER BY runid DESC LIMIT 10000) d
                         WHERE d.status IN ('succeeded', 'failed') ORDER BY d.jobid, d.runid DESC) l
                  JOIN job j USING (jobid) WHERE l.status = 'failed' AND j.active),
            found (place, severity, finding, fix) AS (
                SELECT 0, 'critical', format('pg_cron job %s (%s) runs as the superuser %s, and whoever owns our functions may say what it does', j.jobid, j.jobname, j.username),
                       format('SELECT cron.unschedule(%s)', j.jobid) || CASE WHEN j.is_upkeep THEN '; SELECT messages.install_cron(run_as => ''messages_cron'')'
                                                                             ELSE ' -- and schedule it as a login that may publish' END
                  FROM job j WHERE j.all_powerful
                UNION ALL
                SELECT 1, 'critical', format('the last run of pg_cron job %s (upkeep) failed: %s', f.jobid, f.said), $4
                  FROM failed f WHERE f.is_upkeep
                UNION ALL
                SELECT 3, 'warning', format('pg_cron job %s (upkeep) is not active', min(u.jobid)), format('SELECT cron.alter_job(%s, active => true)', min(u.jobid))
                  FROM upkeep u HAVING count(*) > 0 AND NOT bool_or(u.active)
                UNION ALL
                SELECT 4, 'warning', format('%s active jobs of pg_cron do the upkeep', count(*)), format('SELECT cron.unschedule(%s)', max(u.jobid))
                  FROM upkeep u WHERE u.active HAVING count(*) > 1
                UNION ALL
                SELECT CASE WHEN $2 THEN 2 ELSE 5 END, CASE WHEN $2 THEN 'critical' ELSE 'warning' END,
                       format('pg_cron job %s did %s', max(u.jobid), coalesce('no upkeep for ' || $3, 'no upkeep yet'))
                       || CASE WHEN $2 THEN ': the launcher of pg_cron does not run' ELSE '' END,
                       CASE WHEN $2 THEN 'SELECT messages.upkeep() -- and restart PostgreSQL, which starts the launcher, until then the DAG pgqueue_upkeep does the upkeep'
                            ELSE $4 || ' -- if it does nothing within three minutes either, the log of the server says why' END
                  FROM upkeep u WHERE u.active HAVING count(*) > 0 AND ($2 OR NOT $1)
                UNION ALL
                SELECT 6, 'warning', format('the last run of pg_cron job %s (%s), as %s, failed: %s', f.jobid, f.jobname, f.username, f.said),
                       '-- mend what the error says: the next run that succeeds ends this; after "connection failed", let the login of the job connect'
                  FROM failed f WHERE NOT f.is_upkeep
                UNION ALL
                SELECT 7, 'ok', format('pg_cron job %s does the upkeep as %s', u.jobid, u.username), NULL FROM upkeep u)
            SELECT f.severity, string_agg(f.finding, '; '), min(f.fix) FROM found f
             GROUP BY f.place, f.severity ORDER BY f.place LIMIT 1 $jobs$ USING done, gone, ago, make_jobs;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- No job that this role can see: the row security of pg_cron shows each role its own jobs only. What was done shows who did it.
    RETURN QUERY SELECT found.severity, found.finding, found.fix FROM (VALUES
        (done AND EXISTS (SELECT FROM pg_roles r WHERE r.rolname = last.cron_role AND r.rolsuper), 'critical',
         format('pg_cron does the upkeep as the superuser %s, and whoever owns our functions may say what it does', last.cron_role),
         'SELECT cron.unschedule(jobid) FROM cron.job WHERE database = current_database() AND command ~ ''messages[.]upkeep[(]''; '
         'SELECT messages.install_cron(run_as => ''messages_cron'')'),
        (done AND NOT gone, 'ok', format('pg_cron does the upkeep as %s, in a job that role %s cannot see', last.cron_role, current_user), NULL),
        (last.finished_at > clock_timestamp() - interval '3 minutes', 'ok', format('pg_cron has no job for the upkeep; %s does it', last.done_by), NULL),
        (last.cron_at IS NOT NULL, 'warning', format('pg_cron did no upkeep for %s', ago) || CASE WHEN gone THEN ': its launcher does not run' ELSE '' END,
         CASE WHEN gone THEN 'SELECT messages.upkeep() -- and restart PostgreSQL, which starts the launcher, until then the DAG pgqueue_upkeep does the upkeep'
              ELSE make_jobs END),
        (true, 'warning', 'pg_cron has no job for the upkeep, and nobody else does it', make_jobs)
    ) AS found (applies, severity, finding, fix) WHERE found.applies LIMIT 1;
END $$;
COMMENT ON FUNCTION messages.health_cron_jobs() IS
    'A check of health(). Whether pg_cron does the upkeep: as whom, and when it last did, which it may do in jobs that the owner of the schema cannot see; of those that it can, how the last runs ended, also of jobs that publish.';
