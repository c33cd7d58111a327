CREATE OR REPLACE FUNCTION messages.install_cron() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    home text := current_database();
BEGIN
    IF to_regnamespace('cron') IS NULL THEN
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
            HINT = format('Run there: SELECT cron.schedule_in_database(''messages:upkeep'', ''* * * * *'', ''SELECT messages.upkeep()'', %1$L), cron.schedule_in_database(''messages:schedules'', ''* * * * *'', ''SELECT messages.run_schedules()'', %1$L); or let Airflow do the upkeep.', current_database());
    END IF;
    IF to_regnamespace('cron') IS NULL THEN
        EXECUTE 'CREATE EXTENSION IF NOT EXISTS pg_cron';
    END IF;
    IF has_function_privilege('messages.show_cron_jobs_to_owner()', 'EXECUTE') THEN
        PERFORM messages.show_cron_jobs_to_owner();
    END IF;
    -- A job keeps the host and port from the day it was made, so replace old ones.
    PERFORM messages.uninstall_cron();
    EXECUTE $job$ SELECT cron.schedule('messages:upkeep', '* * * * *', 'SELECT messages.upkeep()') $job$;
    EXECUTE $job$ SELECT cron.schedule('messages:schedules', '* * * * *', 'SELECT messages.run_schedules()') $job$;
    RETURN 'messages:upkeep';
END $$;
COMMENT ON FUNCTION messages.install_cron() IS
    'Runs messages.upkeep() and messages.run_schedules() every minute through pg_cron, one job each for all queues, as the caller; returns the name of the first. PQ006: no pg_cron here, with the cure.';
