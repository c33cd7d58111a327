CREATE OR REPLACE FUNCTION messages.closed_archive_partition(
    name text, OUT partition regclass, OUT first_at timestamptz, OUT end_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    SELECT p.partition, p.first_at, p.end_at INTO partition, first_at, end_at
      FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass WHERE c.relname = name;
    IF partition IS NULL THEN
        RAISE EXCEPTION 'archive partition % does not exist', coalesce(quote_literal(left(name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give one of messages.archive_partitions(), without the schema; not the default partition.';
    END IF;
    IF end_at > clock_timestamp() THEN
        RAISE EXCEPTION 'archive partition % takes messages until %', quote_literal(name), end_at
            USING ERRCODE = 'PQ004', HINT = 'It can be exported and dropped after that.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.closed_archive_partition(text) IS
    'The completed archive partition of this name. PQ004: there is none, or it is not completed.';
