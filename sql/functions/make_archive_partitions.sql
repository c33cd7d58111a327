CREATE OR REPLACE FUNCTION messages.make_archive_partitions(months_ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
DECLARE
    first date := date_trunc('month', clock_timestamp())::date;
    month date;
    made  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('messages.make_archive_partitions', 0));
    FOR ahead IN 0..months_ahead LOOP
        month := (first + make_interval(months => ahead))::date;
        -- A month that already has rows in the default partition stays there.
        CONTINUE WHEN to_regclass(format('messages.message_archive_%s', to_char(month, 'YYYYMM'))) IS NOT NULL
            OR EXISTS (SELECT FROM messages.message_archive_default
                        WHERE archived_at >= month AND archived_at < month + interval '1 month');
        EXECUTE format('CREATE TABLE messages.message_archive_%s PARTITION OF messages.message_archive FOR VALUES FROM (%L) TO (%L)',
                       to_char(month, 'YYYYMM'), month::timestamptz, (month + interval '1 month')::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.make_archive_partitions(integer) IS
    'Makes the monthly archive partitions (UTC) of this and the coming months and returns how many were missing.';
