CREATE OR REPLACE FUNCTION messages.uninstall_cron() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    removed integer := 0;
BEGIN
    IF to_regclass('cron.job') IS NOT NULL THEN
        EXECUTE $jobs$ SELECT count(cron.unschedule(jobid)) FROM cron.job WHERE jobname LIKE 'messages:%' $jobs$ INTO removed;
    END IF;
    RETURN removed;
END $$;
COMMENT ON FUNCTION messages.uninstall_cron() IS 'Removes the pg_cron jobs of the queue and returns how many there were.';
