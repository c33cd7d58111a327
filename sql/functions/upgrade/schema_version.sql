CREATE OR REPLACE FUNCTION messages.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT 1 $$;
COMMENT ON FUNCTION messages.schema_version() IS
    'The oldest version of the schema whose workers can run next to this one; an older package refuses to run.';
