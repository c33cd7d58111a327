CREATE OR REPLACE FUNCTION messages.upkeep_mode() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    scheduled boolean := false;
BEGIN
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') AND has_schema_privilege('cron', 'USAGE') THEN
        EXECUTE $jobs$
            SELECT count(DISTINCT jobname) = 2 FROM cron.job
             WHERE jobname IN ('messages:upkeep', 'messages:schedules') AND active AND database = current_database()
        $jobs$ INTO scheduled;
    END IF;
    RETURN CASE WHEN scheduled THEN 'pg_cron' ELSE 'airflow' END;
END $$;
COMMENT ON FUNCTION messages.upkeep_mode() IS 'Who does the upkeep: pg_cron if both of its jobs are scheduled here, else airflow.';
