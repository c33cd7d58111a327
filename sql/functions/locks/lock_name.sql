CREATE OR REPLACE FUNCTION messages.lock_name(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(p.lock_key, hashtext(lock_name.name)) FROM messages.archive_policy p;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(lock_name.name, SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_name(text) IS
    'Lets one transaction at a time do what has this name, until its commit. PQ016: another held it for three seconds, or waits for this one.';
