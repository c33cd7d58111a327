CREATE OR REPLACE FUNCTION messages.install_cron(run_as text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    home   text := current_database();
    made   CONSTANT boolean := EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron');
    -- One statement, or pg_cron would run it in a single transaction.
    upkeep CONSTANT text := 'DO $upkeep$ DECLARE next text := ''''; BEGIN PERFORM pg_catalog.set_config(''application_name'', ''pg_cron'', false); '
        'WHILE next IS NOT NULL LOOP next := (messages.look_at_next(next)).queue_name; COMMIT; END LOOP; '
        'PERFORM messages.purge_cron_history(); COMMIT; PERFORM messages.upkeep(with_queues => false); END $upkeep$';
BEGIN
    IF NOT made THEN
        BEGIN
            home := current_setting('cron.database_name', true);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'pg_cron is not in database %', quote_literal(current_database()) USING ERRCODE = 'PQ006',
                HINT = format('A superuser can create it: CREATE EXTENSION pg_cron; GRANT USAGE ON SCHEMA cron TO %I; or let Airflow do the upkeep.', current_user);
        END;
    END IF;
    IF home IS NULL THEN
        RAISE EXCEPTION 'pg_cron is not loaded' USING ERRCODE = 'PQ006',
            HINT = format('Set shared_preload_libraries = ''pg_cron'' and cron.database_name = %L in postgresql.conf and restart, or let Airflow do the upkeep.', current_database());
    ELSIF home <> current_database() THEN
        RAISE EXCEPTION 'pg_cron lives in database %, not in %', quote_literal(home), quote_literal(current_database())
            USING ERRCODE = 'PQ006',
            HINT = format('Run there, for a login that is a member of messages_upkeep: SELECT cron.schedule_in_database(%3$L, ''* * * * *'', %2$L, %1$L, ''messages_cron''); or let Airflow do the upkeep.', current_database(), upkeep, 'messages:upkeep:' || current_database());
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
        THEN $job$ SELECT cron.schedule_in_database('messages:upkeep', '* * * * *', $2, current_database(), $1) $job$
        ELSE $job$ SELECT cron.schedule('messages:upkeep', '* * * * *', $2) $job$ END USING install_cron.run_as, upkeep;
    PERFORM messages.expect_cron(coalesce(install_cron.run_as, current_user));
    RETURN 'messages:upkeep';
END $$;
COMMENT ON FUNCTION messages.install_cron(text) IS
    'Runs messages.upkeep() every minute through pg_cron, in one job for all queues, as the login run_as (the caller if NULL); returns the name of the job. A superuser has to name one; if there is no such role, it is made as a member of messages_upkeep. PQ004: a superuser named none; PQ006: no pg_cron here, with the fix.';
