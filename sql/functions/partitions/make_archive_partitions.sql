CREATE OR REPLACE FUNCTION messages.make_archive_partitions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    size    text := (SELECT p.partition_by FROM messages.archive_policy p);
    moment  timestamptz := clock_timestamp();
    first   timestamptz;
    after   timestamptz;
    made    integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('messages.make_archive_partitions', 0));
    -- A week ahead by day, three months ahead by month: so long the upkeep may be missing.
    FOR ahead IN 0..CASE size WHEN 'day' THEN 7 ELSE 3 END LOOP
        first := date_trunc(size, moment) + ahead * ('1 ' || size)::interval;
        after := first + ('1 ' || size)::interval;
        -- Leave out what another partition covers, and any period of which the default partition has rows.
        CONTINUE WHEN EXISTS (SELECT FROM messages.archive_partitions() p WHERE p.first_at < after AND p.end_at > first)
            OR EXISTS (SELECT FROM messages.message_archive_default d WHERE d.archived_at >= first AND d.archived_at < after);
        EXECUTE format('CREATE TABLE messages.message_archive_%s PARTITION OF messages.message_archive FOR VALUES FROM (%L) TO (%L)',
                       to_char(first, CASE size WHEN 'day' THEN 'YYYYMMDD' ELSE 'YYYYMM' END), first, after);
        -- Published to a subscriber: docs/how-to/backup.md
        IF (SELECT c.relreplident FROM pg_class c WHERE c.oid = 'messages.message_archive_default'::regclass) = 'f' THEN
            EXECUTE format('ALTER TABLE messages.message_archive_%s REPLICA IDENTITY FULL', to_char(first, CASE size WHEN 'day' THEN 'YYYYMMDD' ELSE 'YYYYMM' END));
        END IF;
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.make_archive_partitions() IS
    'Creates the archive partitions (UTC) of the current and the coming days or months and returns how many were missing.';
