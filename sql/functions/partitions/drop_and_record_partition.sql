CREATE OR REPLACE FUNCTION messages.drop_and_record_partition(partition regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gone record;
BEGIN
    -- Readers continue while it is read; nobody adds a message to it.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', drop_and_record_partition.partition);
    FOR gone IN EXECUTE format($each$
        SELECT coalesce(a.queue_name, '') AS queue_name, max(a.xid) AS last_xid, max(a.archived_at) AS archived_at
          FROM %s a GROUP BY 1 ORDER BY 1
        $each$, drop_and_record_partition.partition)
    LOOP
        PERFORM messages.record_archive_removal(gone.queue_name, gone.last_xid, gone.archived_at);
    END LOOP;
    EXECUTE format('DROP TABLE %s', drop_and_record_partition.partition);
END $$;
COMMENT ON FUNCTION messages.drop_and_record_partition(regclass) IS
    'Drops an archive partition and records for each queue the place in the log behind its last message. 55P03: it is in use.';
