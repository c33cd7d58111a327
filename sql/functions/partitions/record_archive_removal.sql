CREATE OR REPLACE FUNCTION messages.record_archive_removal(last_xid bigint, last_id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE messages.archive_policy p
       SET gone_before_xid = gone.xid, gone_before_id = gone.id
      FROM (SELECT coalesce(record_archive_removal.last_xid + 1, 0) AS xid,
                   CASE WHEN record_archive_removal.last_xid IS NULL THEN record_archive_removal.last_id + 1 ELSE 0 END AS id) gone
     WHERE (p.gone_before_xid, p.gone_before_id) < (gone.xid, gone.id)
$$;
COMMENT ON FUNCTION messages.record_archive_removal(bigint, bigint) IS
    'Records the place in the log behind the last message that was removed: its transaction, or the id of a message without one. NULLs if none was.';
