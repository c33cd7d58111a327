CREATE OR REPLACE FUNCTION messages.supersede(signature text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old  regprocedure := to_regprocedure(signature);
    name text;
    args text;
BEGIN
    -- Not there in a new installation, where the functions come after the migrations.
    IF old IS NULL THEN
        RETURN;
    END IF;
    SELECT p.proname, array_to_string(p.proargnames, '|') INTO name, args FROM pg_proc p WHERE p.oid = old;
    EXECUTE format('ALTER FUNCTION %s RENAME TO %I', old, 'superseded_' || name);
    -- A call that found it under its old name may compile it only now, and it names its parameters after itself.
    EXECUTE regexp_replace(pg_get_functiondef(old), format(E'\\m%s[.](%s)\\M', name, args), format(E'superseded_%s.\\1', name), 'g');
END $$;
COMMENT ON FUNCTION messages.supersede(text) IS
    'For migrations: renames a function whose arguments change to superseded_…, so that calls in progress can finish. grants.sql passes grants by hand on to its successor, and the upkeep drops it an hour later.';
