CREATE OR REPLACE FUNCTION messages.drop_and_record_partition(partition regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    last_xid bigint;
BEGIN
    -- Readers continue while it is read; nobody adds a message to it.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', drop_and_record_partition.partition);
    EXECUTE format('SELECT max(a.xid) FROM %s a', drop_and_record_partition.partition) INTO last_xid;
    EXECUTE format('DROP TABLE %s', drop_and_record_partition.partition);
    PERFORM messages.record_archive_removal(last_xid);
END $$;
COMMENT ON FUNCTION messages.drop_and_record_partition(regclass) IS
    'Drops an archive partition and records the place in the log behind its last message. 55P03: it is in use.';
