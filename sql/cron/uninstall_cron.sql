CREATE OR REPLACE FUNCTION messages.uninstall_cron() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    removed integer := 0;
BEGIN
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') AND has_schema_privilege('cron', 'USAGE') THEN
        EXECUTE $jobs$
            SELECT count(cron.unschedule(jobid)) FROM cron.job
             WHERE jobname LIKE 'messages:upkeep%' AND database = current_database()
               AND (username = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
        $jobs$ INTO removed;
    END IF;
    PERFORM messages.expect_cron(NULL) WHERE removed > 0;
    RETURN removed;
END $$;
COMMENT ON FUNCTION messages.uninstall_cron() IS 'Removes the pg_cron jobs of the queue in this database that belong to the caller (for a superuser those of everybody) and returns how many there were.';
