CREATE OR REPLACE FUNCTION messages.install_cron() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    home text := current_setting('cron.database_name', true);
BEGIN
    IF home IS NULL THEN
        RAISE EXCEPTION 'pg_cron is not loaded' USING ERRCODE = 'PQ006',
            HINT = format('Set shared_preload_libraries = ''pg_cron'' and cron.database_name = %L in postgresql.conf and restart, or let Airflow do the upkeep.', current_database());
    ELSIF home <> current_database() THEN
        RAISE EXCEPTION 'pg_cron lives in database %, not in %', quote_literal(home), quote_literal(current_database())
            USING ERRCODE = 'PQ006',
            HINT = format('Run there: SELECT cron.schedule_in_database(''messages:upkeep'', ''* * * * *'', ''SELECT messages.upkeep()'', %L); or let Airflow do the upkeep.', current_database());
    END IF;
    IF to_regclass('cron.job') IS NULL THEN
        EXECUTE 'CREATE EXTENSION IF NOT EXISTS pg_cron';
    END IF;
    -- A job keeps the host and port of the day it was made, so make it anew.
    PERFORM messages.uninstall_cron();
    EXECUTE $job$ SELECT cron.schedule('messages:upkeep', '* * * * *', 'SELECT messages.upkeep()') $job$;
    RETURN 'messages:upkeep';
END $$;
COMMENT ON FUNCTION messages.install_cron() IS
    'Schedules messages.upkeep() every minute through pg_cron, one job for all queues, as the caller; returns its name. PQ006: no pg_cron here, with the cure.';
