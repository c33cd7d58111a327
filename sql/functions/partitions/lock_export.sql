CREATE OR REPLACE FUNCTION messages.lock_export(partition text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_try_advisory_xact_lock(p.lock_key, hashtext(lock_export.partition)) FROM messages.archive_policy p
$$;
COMMENT ON FUNCTION messages.lock_export(text) IS
    'Whether no other export works on a partition of the archive: true keeps the others out until the commit.';
