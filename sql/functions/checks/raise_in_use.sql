CREATE OR REPLACE FUNCTION messages.raise_in_use(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% is in use', what USING ERRCODE = 'PQ016',
        HINT = 'Nothing was changed. Try again when no long transaction uses it: SELECT pid, application_name, xact_start FROM pg_stat_activity WHERE xact_start < now() - interval ''1 s'' ORDER BY 3; SELECT * FROM pg_prepared_xacts';
END $$;
COMMENT ON FUNCTION messages.raise_in_use(text) IS 'Raises PQ016 for what transactions of others held for too long.';
