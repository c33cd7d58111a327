CREATE OR REPLACE FUNCTION messages.health_cron_home() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN current_setting('cron.database_name', true);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN CASE WHEN EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN current_database() ELSE '' END;
END $$;
COMMENT ON FUNCTION messages.health_cron_home() IS
    'Internal, of health(). The database of pg_cron; NULL: it is not loaded; empty: another one that this role may not ask for.';
