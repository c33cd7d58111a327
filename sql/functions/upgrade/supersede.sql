CREATE OR REPLACE FUNCTION messages.supersede(signature text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old regprocedure := to_regprocedure(signature);
BEGIN
    -- Not there in a new installation, where the functions come after the migrations.
    IF old IS NOT NULL THEN
        EXECUTE format('ALTER FUNCTION %s RENAME TO %I', old, 'superseded_' || (SELECT p.proname FROM pg_proc p WHERE p.oid = old));
    END IF;
END $$;
COMMENT ON FUNCTION messages.supersede(text) IS
    'For migrations: renames a function whose arguments change to superseded_…, so that calls in progress can finish. grants.sql passes grants by hand on to its successor, and the upkeep drops it an hour later.';
