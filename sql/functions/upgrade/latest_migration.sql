CREATE OR REPLACE FUNCTION messages.latest_migration() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(max(version), 0) FROM messages.schema_migration $$;
COMMENT ON FUNCTION messages.latest_migration() IS 'The newest migration that was applied.';
