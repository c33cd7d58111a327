CREATE OR REPLACE FUNCTION messages.drop_and_record_partition(partition regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gone record;
BEGIN
    -- Readers continue while it is read; nobody adds a message to it.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', drop_and_record_partition.partition);
    EXECUTE format($all$
        SELECT array_agg(q.name) AS names, array_agg(q.last_xid) AS last_xids, array_agg(q.newest) AS newest
          FROM (SELECT coalesce(a.queue_name, '') AS name, max(a.xid) AS last_xid, max(a.archived_at) AS newest FROM %s a GROUP BY 1) q
        $all$, drop_and_record_partition.partition) INTO gone;
    EXECUTE format('DROP TABLE %s', drop_and_record_partition.partition);
    PERFORM messages.record_archive_removal(q.name, q.last_xid, q.newest)
       FROM unnest(gone.names, gone.last_xids, gone.newest) AS q (name, last_xid, newest);
END $$;
COMMENT ON FUNCTION messages.drop_and_record_partition(regclass) IS
    'Drops an archive partition and records for each queue the place in the log behind its last message. 55P03: it is in use.';
