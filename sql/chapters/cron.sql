-- Cron: the job of pg_cron, which runs maintenance every minute.
--
-- install_cron gives maintenance to pg_cron, which runs it as a login of its own. expect_cron keeps Airflow from running maintenance until
-- the first run of the job. purge_cron_history deletes the records of runs, which pg_cron keeps forever. Two checks of health() stand here.
-- Statements on tables of pg_cron are dynamic, because a database may have no pg_cron.
--
-- Tables: none.

CREATE OR REPLACE FUNCTION messages.install_cron(run_as text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    home   text := current_database();
    made   CONSTANT boolean := EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron');
    -- The job is one statement, or pg_cron would run it in a single transaction.
    maintenance CONSTANT text := 'DO $maintenance$ DECLARE next text := ''''; BEGIN PERFORM pg_catalog.set_config(''application_name'', ''pg_cron'', false); '
        'WHILE next IS NOT NULL LOOP next := (messages.scan_next(next)).queue_name; COMMIT; END LOOP; '
        'PERFORM messages.purge_cron_history(); COMMIT; PERFORM messages.maintain(with_queues => false); END $maintenance$';
BEGIN
    IF NOT made THEN
        BEGIN
            home := current_setting('cron.database_name', true);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'pg_cron is not in database %', quote_literal(current_database()) USING ERRCODE = 'PQ006',
                HINT = format('A superuser can create it: CREATE EXTENSION pg_cron; GRANT USAGE ON SCHEMA cron TO %I; or let Airflow run maintenance.', current_user);
        END;
    END IF;
    IF home IS NULL THEN
        RAISE EXCEPTION 'pg_cron is not loaded' USING ERRCODE = 'PQ006',
            HINT = format('Set shared_preload_libraries = ''pg_cron'' and cron.database_name = %L in postgresql.conf and restart, or let Airflow run maintenance.', current_database());
    ELSIF home <> current_database() THEN
        RAISE EXCEPTION 'pg_cron lives in database %, not in %', quote_literal(home), quote_literal(current_database())
            USING ERRCODE = 'PQ006',
            HINT = format('Run there, for a login that is a member of messages_maintenance: SELECT cron.schedule_in_database(%3$L, ''* * * * *'', %2$L, %1$L, ''messages_cron''); or let Airflow run maintenance.', current_database(), maintenance, 'messages:maintenance:' || current_database());
    END IF;
    -- Members of messages_owner may replace the functions: in a job of a superuser that would be a way to all of the server.
    IF install_cron.run_as IS NULL AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        RAISE EXCEPTION 'role % is a superuser, and so would be what the job runs', current_user USING ERRCODE = 'PQ004',
            HINT = 'Name a login for the job, which is made if it is missing: SELECT messages.install_cron(run_as => ''messages_cron'')';
    END IF;
    IF NOT made THEN
        EXECUTE 'CREATE EXTENSION IF NOT EXISTS pg_cron';
    END IF;
    IF has_function_privilege('messages.show_cron_jobs_to_owner()', 'EXECUTE') THEN
        PERFORM messages.show_cron_jobs_to_owner();
    END IF;
    IF install_cron.run_as <> current_user THEN
        PERFORM messages.prepare_cron_role(install_cron.run_as);
    END IF;
    -- A job keeps the host and port from the day it was made, so replace old ones.
    PERFORM messages.uninstall_cron();
    -- pg_cron lets everybody call schedule, but only superusers schedule_in_database.
    EXECUTE CASE WHEN install_cron.run_as <> current_user
        THEN $job$ SELECT cron.schedule_in_database('messages:maintenance', '* * * * *', $2, current_database(), $1) $job$
        ELSE $job$ SELECT cron.schedule('messages:maintenance', '* * * * *', $2) $job$ END USING install_cron.run_as, maintenance;
    PERFORM messages.expect_cron(coalesce(install_cron.run_as, current_user));
    RETURN 'messages:maintenance';
END $$;
COMMENT ON FUNCTION messages.install_cron IS
    'Runs messages.maintain() every minute through pg_cron, in one job for all queues, as the login run_as (the caller if NULL); returns the name of the job. A superuser has to name one; if there is no such role, it is made as a member of messages_maintenance. PQ004: a superuser named none; PQ006: no pg_cron here, with the fix.'
    ' [for: maintenance]';

CREATE OR REPLACE FUNCTION messages.prepare_cron_role(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    needed CONSTANT regprocedure[] := '{messages.maintain(boolean),messages.scan_next(text),messages.purge_cron_history(integer)}';
    login  record;
BEGIN
    SELECT * INTO login FROM pg_roles r WHERE r.rolname = role_name;
    IF NOT FOUND THEN
        EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        IF to_regrole('messages_maintenance') IS NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA messages TO %I', role_name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', array_to_string(needed, ', '), role_name);
        ELSE
            EXECUTE format('GRANT messages_maintenance TO %I', role_name);
        END IF;
    ELSIF NOT login.rolcanlogin THEN
        RAISE EXCEPTION 'role % may not log in, as pg_cron has to', quote_literal(role_name)
            USING ERRCODE = 'PQ004', HINT = 'Name a login that is a member of messages_maintenance.';
    ELSIF NOT (has_schema_privilege(role_name, 'messages', 'USAGE')
               AND (SELECT bool_and(has_function_privilege(role_name, one, 'EXECUTE')) FROM unnest(needed) AS one)) THEN
        RAISE EXCEPTION 'role % may not execute %', quote_literal(role_name), array_to_string(needed, ', ')
            USING ERRCODE = 'PQ004', HINT = format('GRANT messages_maintenance TO %I', role_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.prepare_cron_role IS
    'Makes a login that may run maintenance, if there is no such role. PQ004: the role exists and may not log in, or may not run maintenance.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.show_cron_jobs_to_owner() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    cron_owner oid := (SELECT e.extowner FROM pg_extension e WHERE e.extname = 'pg_cron');
BEGIN
    IF to_regrole('messages_owner') IS NULL OR pg_has_role(current_user, cron_owner, 'USAGE') IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- pg_cron shows each role its own jobs only, but the role that made a job is not the one that owns our functions.
    GRANT USAGE ON SCHEMA cron TO messages_owner;
    IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = to_regclass('cron.job') AND polname = 'messages_owner') THEN
        EXECUTE $policy$
            CREATE POLICY messages_owner ON cron.job FOR SELECT TO messages_owner
                USING (command ~ '[[:<:]]messages[.]')
        $policy$;
        EXECUTE $policy$
            CREATE POLICY messages_owner ON cron.job_run_details TO messages_owner
                USING (database = current_database() AND command ~ '[[:<:]]messages[.]')
        $policy$;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.show_cron_jobs_to_owner IS
    'Lets messages_owner see the jobs of pg_cron that call the queue, and their history, if the caller owns the tables of pg_cron.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.expect_cron(run_as text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '30s'
AS $$
BEGIN
    INSERT INTO messages.maintenance_run AS u (cron_at, cron_role) VALUES (CASE WHEN run_as IS NOT NULL THEN clock_timestamp() END, run_as)
    ON CONFLICT (only_row) DO UPDATE SET cron_at = excluded.cron_at, cron_role = excluded.cron_role;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('maintenance');
END $$;
COMMENT ON FUNCTION messages.expect_cron IS
    'Records that pg_cron got the maintenance job, as this login, and so has three minutes to begin; NULL records that pg_cron no longer has the job. PQ016: maintenance ran for half a minute.'
    ' [for: maintenance]';

CREATE OR REPLACE FUNCTION messages.uninstall_cron() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    removed integer := 0;
BEGIN
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') AND has_schema_privilege('cron', 'USAGE') THEN
        EXECUTE $jobs$
            SELECT count(cron.unschedule(jobid)) FROM cron.job
             WHERE jobname LIKE 'messages:maintenance%' AND database = current_database()
               AND (username = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
        $jobs$ INTO removed;
    END IF;
    PERFORM messages.expect_cron(NULL) WHERE removed > 0;
    RETURN removed;
END $$;
COMMENT ON FUNCTION messages.uninstall_cron IS 'Removes the pg_cron jobs of the queue in this database that belong to the caller (for a superuser those of everybody) and returns how many there were.'
    ' [for: maintenance]';

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
    -- pg_cron keeps a row for each run forever, also for removed jobs, and for runs without an end, which a restart of the
    -- server leaves behind. Row security shows a login the runs of its own jobs, and messages_owner those of show_cron_jobs_to_owner().
    EXECUTE $purge$
        WITH ours AS MATERIALIZED (
            SELECT d.runid, d.end_time FROM cron.job_run_details d
             WHERE (d.database = current_database() AND (d.command = 'SELECT messages.maintain()'
                                                         OR d.command LIKE 'DO $maintenance$ % messages.maintain(%); END $maintenance$'))
                OR d.jobid IN (SELECT j.jobid FROM cron.job j WHERE j.jobname LIKE 'messages:maintenance%' AND j.database = current_database()))
        DELETE FROM cron.job_run_details WHERE runid = ANY (ARRAY(
            SELECT o.runid FROM ours o
             WHERE o.runid <= (SELECT max(past.runid) FROM ours past WHERE past.end_time < clock_timestamp() - interval '3 days')
             ORDER BY o.runid LIMIT $1))
    $purge$ USING max_runs;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;
COMMENT ON FUNCTION messages.purge_cron_history IS
    'Deletes up to max_runs runs of our own pg_cron jobs, including removed ones, that are older than three days and that the caller may see, and returns how many. The job of pg_cron calls it as its login, and maintenance as the owner of the schema.'
    ' [for: maintenance]';

CREATE OR REPLACE FUNCTION messages.cron_database() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN current_setting('cron.database_name', true);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN CASE WHEN EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN current_database() ELSE '' END;
END $$;
COMMENT ON FUNCTION messages.cron_database IS
    'The database that pg_cron runs in; NULL if it is not loaded, empty for another database whose name this role may not see.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_cron_jobs() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
#variable_conflict use_column
DECLARE
    home      text    := messages.cron_database();
    last      messages.maintenance_run;
    ago       text;
    done      boolean;
    -- How this login lets pg_cron run maintenance.
    make_jobs text    := CASE WHEN (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
                              THEN 'SELECT messages.install_cron(run_as => ''messages_cron'')' ELSE 'SELECT messages.install_cron()' END;
    -- A launcher that was ended stays away until the server starts again; a session whose type is hidden may be the launcher.
    gone      boolean := NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.backend_type IS NULL OR a.backend_type = 'pg_cron launcher');
BEGIN
    SELECT * INTO last FROM messages.maintenance_run;
    -- A time that lies ahead comes from a wrong clock.
    last.cron_at := CASE WHEN last.cron_at <= clock_timestamp() THEN last.cron_at END;
    last.finished_at := CASE WHEN last.finished_at <= clock_timestamp() THEN last.finished_at END;
    ago := date_trunc('second', clock_timestamp() - last.cron_at)::text;
    done := coalesce(last.cron_at > clock_timestamp() - interval '3 minutes', false);
    gone := gone AND (last.cron_at > clock_timestamp() - interval '90 seconds') IS NOT TRUE;
    IF home IS DISTINCT FROM current_database() THEN
        RETURN QUERY SELECT 'ok', CASE
            WHEN home IS NULL THEN 'pg_cron is not loaded: Airflow runs maintenance'
            ELSE format('pg_cron lives in %s: ', coalesce('database ' || nullif(home, ''), 'another database'))
                 || CASE WHEN done THEN format('it ran maintenance %s ago, as %s', ago, last.cron_role) ELSE 'jobs there or Airflow run maintenance' END END, NULL;
        RETURN;
    END IF;
    IF has_schema_privilege(to_regnamespace('cron'), 'USAGE') THEN
        RETURN QUERY EXECUTE $jobs$
            WITH job AS (
                SELECT j.jobid, j.jobname, j.active, j.username, r.rolsuper AS all_powerful,
                       j.command ~ 'messages[.]maintain[(]' AND has_function_privilege(r.oid, 'messages.maintain(boolean)', 'EXECUTE') AS is_maintenance
                  FROM cron.job j JOIN pg_roles r ON r.rolname = j.username
                 WHERE j.database = current_database() AND j.command ~ '[[:<:]]messages[.]'),
            maintenance AS (SELECT * FROM job j WHERE j.is_maintenance),
            failed AS (
                SELECT j.*, l.said
                  FROM (SELECT DISTINCT ON (d.jobid) d.jobid, d.status, left(split_part(d.return_message, E'\n', 1), 200) AS said
                          FROM (SELECT * FROM cron.job_run_details ORDER BY runid DESC LIMIT 10000) d
                         WHERE d.status IN ('succeeded', 'failed') ORDER BY d.jobid, d.runid DESC) l
                  JOIN job j USING (jobid) WHERE l.status = 'failed' AND j.active),
            found (place, severity, finding, fix) AS (
                SELECT 0, 'critical', format('pg_cron job %s (%s) runs as the superuser %s, and whoever owns our functions may say what it does', j.jobid, j.jobname, j.username),
                       format('SELECT cron.unschedule(%s)', j.jobid) || CASE WHEN j.is_maintenance THEN '; SELECT messages.install_cron(run_as => ''messages_cron'')'
                                                                             ELSE ' -- and schedule it as a login that may publish' END
                  FROM job j WHERE j.all_powerful
                UNION ALL
                SELECT 1, 'critical', format('the last run of pg_cron job %s (maintenance) failed: %s', f.jobid, f.said), $4
                  FROM failed f WHERE f.is_maintenance
                UNION ALL
                SELECT 3, 'warning', format('pg_cron job %s (maintenance) is not active', min(u.jobid)), format('SELECT cron.alter_job(%s, active => true)', min(u.jobid))
                  FROM maintenance u HAVING count(*) > 0 AND NOT bool_or(u.active)
                UNION ALL
                SELECT 4, 'warning', format('%s active jobs of pg_cron run maintenance', count(*)), format('SELECT cron.unschedule(%s)', max(u.jobid))
                  FROM maintenance u WHERE u.active HAVING count(*) > 1
                UNION ALL
                SELECT CASE WHEN $2 THEN 2 ELSE 5 END, CASE WHEN $2 THEN 'critical' ELSE 'warning' END,
                       format('pg_cron job %s did %s', max(u.jobid), coalesce('no maintenance for ' || $3, 'no maintenance yet'))
                       || CASE WHEN $2 THEN ': the launcher of pg_cron does not run' ELSE '' END,
                       CASE WHEN $2 THEN 'SELECT messages.maintain() -- and restart PostgreSQL, which starts the launcher, until then the DAG pgqueue_maintenance runs maintenance'
                            ELSE $4 || ' -- if it does nothing within three minutes either, the log of the server says why' END
                  FROM maintenance u WHERE u.active HAVING count(*) > 0 AND ($2 OR NOT $1)
                UNION ALL
                SELECT 6, 'warning', format('the last run of pg_cron job %s (%s), as %s, failed: %s', f.jobid, f.jobname, f.username, f.said),
                       '-- fix what the error says: the next run that succeeds ends this; after "connection failed", let the login of the job connect'
                  FROM failed f WHERE NOT f.is_maintenance
                UNION ALL
                SELECT 7, 'ok', format('pg_cron job %s runs maintenance as %s', u.jobid, u.username), NULL FROM maintenance u)
            SELECT f.severity, string_agg(f.finding, '; '), min(f.fix) FROM found f
             GROUP BY f.place, f.severity ORDER BY f.place LIMIT 1 $jobs$ USING done, gone, ago, make_jobs;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- This role sees no job, because the row security of pg_cron shows each role its own jobs only. The last run shows who ran it.
    RETURN QUERY SELECT found.severity, found.finding, found.fix FROM (VALUES
        (done AND EXISTS (SELECT FROM pg_roles r WHERE r.rolname = last.cron_role AND r.rolsuper), 'critical',
         format('pg_cron runs maintenance as the superuser %s, and whoever owns our functions may say what it does', last.cron_role),
         'SELECT cron.unschedule(jobid) FROM cron.job WHERE database = current_database() AND command ~ ''messages[.]maintain[(]''; '
         'SELECT messages.install_cron(run_as => ''messages_cron'')'),
        (done AND NOT gone, 'ok', format('pg_cron runs maintenance as %s, in a job that role %s cannot see', last.cron_role, current_user), NULL),
        (last.finished_at > clock_timestamp() - interval '3 minutes', 'ok', format('pg_cron has no job for maintenance; %s does it', last.done_by), NULL),
        (last.cron_at IS NOT NULL, 'warning', format('pg_cron did no maintenance for %s', ago) || CASE WHEN gone THEN ': its launcher does not run' ELSE '' END,
         CASE WHEN gone THEN 'SELECT messages.maintain() -- and restart PostgreSQL, which starts the launcher, until then the DAG pgqueue_maintenance runs maintenance'
              ELSE make_jobs END),
        (true, 'warning', 'pg_cron has no job for maintenance, and nobody else does it', make_jobs)
    ) AS found (applies, severity, finding, fix) WHERE found.applies LIMIT 1;
END $$;
COMMENT ON FUNCTION messages.health_cron_jobs IS
    'A check of health(). Whether pg_cron runs maintenance, as which login, and when it last did, even in jobs that the owner of the schema cannot see; of the jobs that it can see, also of those that publish, how the last runs ended.'
    ' [internal]';

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
             WHERE d.database = current_database() AND d.command ~ 'messages[.]maintain[(]'
               AND d.end_time < clock_timestamp() - interval '7 days' $runs$ INTO ours;
    END IF;
    RETURN QUERY SELECT
        CASE WHEN ours > 0 OR total > 1000000 THEN 'warning' ELSE 'ok' END,
        format('runs of ours older than 7 days in the history of pg_cron: %s; runs of all jobs: about %s', ours, total),
        CASE WHEN ours > 0 THEN 'SELECT messages.purge_cron_history() -- repeat until 0'
             WHEN total > 1000000 THEN 'DELETE FROM cron.job_run_details WHERE runid IN (SELECT runid FROM cron.job_run_details'
                 ' WHERE end_time < now() - interval ''7 days'' ORDER BY runid LIMIT 50000) -- repeat until 0, then: ANALYZE cron.job_run_details' END;
END $$;
COMMENT ON FUNCTION messages.health_cron_history IS
    'A check of health(). Whether the run history of pg_cron is purged.'
    ' [internal]';
