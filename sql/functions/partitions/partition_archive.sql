CREATE OR REPLACE FUNCTION messages.partition_archive(partition_by text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    coming record;
    used   boolean;
BEGIN
    PERFORM messages.check_choice('partition_by', partition_archive.partition_by, '{day,month}', required => true);
    PERFORM messages.lock_row('messages.archive_policy');
    PERFORM messages.lock_briefly('messages.archive_rows', 'ACCESS EXCLUSIVE');
    UPDATE messages.archive_policy p SET partition_by = partition_archive.partition_by;
    -- Future partitions are empty: drop them, so that the new size begins with the next period and not in months.
    FOR coming IN SELECT * FROM messages.archive_partitions() p WHERE p.first_at > clock_timestamp() LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', coming.partition) INTO used;
        IF NOT used THEN
            EXECUTE format('DROP TABLE %s', coming.partition);
        END IF;
    END LOOP;
    PERFORM messages.make_archive_partitions();
END $$;
COMMENT ON FUNCTION messages.partition_archive(text) IS
    'Sets whether archive partitions are made by day or by month. Partitions that have begun or have messages are kept, so a change takes effect when they end. PQ004: neither day nor month; PQ016: the archive is in use.';
