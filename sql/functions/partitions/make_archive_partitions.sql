CREATE OR REPLACE FUNCTION messages.make_archive_partitions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET lock_timeout = '200ms'
SET default_tablespace = '' SET default_table_access_method = 'heap'
AS $$
#variable_conflict use_column
DECLARE
    size    text;
    moment  timestamptz := clock_timestamp();
    first   timestamptz;
    after   timestamptz;
    begins  timestamptz;
    name    text;
    last    timestamptz;
    made    integer := 0;
BEGIN
    SELECT p.partition_by INTO size FROM messages.archive_policy p FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN                      -- another session makes them
        RETURN 0;
    END IF;
    -- A week ahead by day, three months ahead by month: the upkeep may be missing for that long. The one that follows
    -- the current partition, which may have another size, is always made.
    first := date_trunc(size, moment);
    last := greatest(first + CASE size WHEN 'day' THEN interval '7 days' ELSE interval '3 months' END,
                     (SELECT p.end_at FROM messages.archive_partitions() p WHERE p.first_at <= moment AND p.end_at > moment));
    WHILE first <= last LOOP
        after := first + ('1 ' || size)::interval;
        -- Leave out what other partitions cover, and any period of which the default partition has rows.
        begins := greatest(first, (SELECT max(p.end_at) FROM messages.archive_partitions() p WHERE p.first_at < after AND p.end_at > first));
        IF begins < after
           AND NOT EXISTS (SELECT FROM messages.message_archive_default d WHERE d.archived_at >= begins AND d.archived_at < after) THEN
            name := to_char(begins, CASE WHEN size = 'month' AND begins = first THEN 'YYYYMM' ELSE 'YYYYMMDD' END);
            BEGIN
                EXECUTE format('CREATE TABLE messages.message_archive_%s PARTITION OF messages.archive_rows FOR VALUES FROM (%L) TO (%L)',
                               name, begins, after);
                EXECUTE format('ALTER TABLE messages.message_archive_%s REPLICA IDENTITY FULL', name);
                PERFORM messages.keep_private(format('messages.message_archive_%s', name)::regclass);
                made := made + 1;
                PERFORM messages.record_upkeep_step('make_archive_partitions', name);
            EXCEPTION
                WHEN lock_not_available THEN
                    -- All who archive queue up behind this lock. The partitions are made long before they are needed.
                    RAISE WARNING 'the archive is in use: the next upkeep makes its partition from %', begins;
                    RETURN made;
                WHEN OTHERS THEN
                    PERFORM messages.record_upkeep_step('make_archive_partitions', name, SQLSTATE, SQLERRM);
            END;
        END IF;
        first := after;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.make_archive_partitions() IS
    'Creates the archive partitions (UTC) of the current and the coming days or months and returns how many it made. Waits a fifth of a second for transactions that use the archive, then leaves the rest to the next upkeep.';
