CREATE OR REPLACE FUNCTION messages.record_archive_removal(last_xid bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE messages.archive_policy p SET gone_before_xid = record_archive_removal.last_xid + 1
     WHERE p.gone_before_xid <= record_archive_removal.last_xid
$$;
COMMENT ON FUNCTION messages.record_archive_removal(bigint) IS
    'Records the place in the log behind the last message that was removed, given its transaction; NULL if none was.';
