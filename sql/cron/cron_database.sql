CREATE OR REPLACE FUNCTION messages.cron_database() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN current_setting('cron.database_name', true);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN CASE WHEN EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'pg_cron') THEN current_database() ELSE '' END;
END $$;
COMMENT ON FUNCTION messages.cron_database() IS
    'The database that pg_cron runs in; NULL if it is not loaded, empty for another database whose name this role may not see.';
