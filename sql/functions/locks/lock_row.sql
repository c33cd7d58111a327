CREATE OR REPLACE FUNCTION messages.lock_row(relation regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
BEGIN
    EXECUTE format('SELECT FROM %s FOR NO KEY UPDATE', relation);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(relation::text);
END $$;
COMMENT ON FUNCTION messages.lock_row(regclass) IS
    'Locks the one row of a table until the commit. PQ016: another transaction held it for three seconds.';
