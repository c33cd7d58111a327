CREATE OR REPLACE FUNCTION messages.record_archive_removal(queue_name text, last_xid bigint, archived_at timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- The lock of the row lasts until the end of the transaction, so the numbers are in the order of the commits.
    WITH counted AS (
        UPDATE messages.archive_policy p SET removals = p.removals + 1
         WHERE record_archive_removal.last_xid IS NOT NULL RETURNING p.removals),
    -- A later removal that reaches as far tells every reader the same, and replaces this one.
    replaced AS (
        DELETE FROM messages.archive_removal r USING counted
         WHERE r.queue_name = record_archive_removal.queue_name AND r.before_xid <= record_archive_removal.last_xid + 1
        RETURNING r.archived_at)
    INSERT INTO messages.archive_removal (queue_name, number, before_xid, archived_at)
    SELECT record_archive_removal.queue_name, counted.removals, record_archive_removal.last_xid + 1,
           greatest(record_archive_removal.archived_at, (SELECT max(r.archived_at) FROM replaced r))
      FROM counted
$$;
COMMENT ON FUNCTION messages.record_archive_removal(text, bigint, timestamptz) IS
    'Records that messages of a queue were removed from the archive, given the last transaction that archived one of them and when the newest was archived; NULL if none was removed.';
