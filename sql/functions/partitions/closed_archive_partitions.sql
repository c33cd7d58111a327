CREATE OR REPLACE FUNCTION messages.closed_archive_partitions(
    older_than interval DEFAULT '0', names text[] DEFAULT NULL, with_open boolean DEFAULT false)
RETURNS TABLE (name text, oid bigint, first_at timestamptz, end_at timestamptz, pages bigint, bytes bigint,
               rows_in_page double precision, columns jsonb, before_xid bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('older_than', closed_archive_partitions.older_than, '0', '36600 days');
    RETURN QUERY
    SELECT c.relname::text, c.oid::bigint, p.first_at, p.end_at,
           pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid),
           -- A partition that was never analysed has no statistics: this is a guess.
           CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 30 END, archive.columns,
           -- What later transactions archive is not read yet: so the rows stay the same while an export reads them.
           CASE WHEN p.end_at > clock_timestamp() THEN pg_snapshot_xmin(pg_current_snapshot())::text::bigint END
      FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass
     CROSS JOIN (SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, NULL)) ORDER BY a.attnum) AS columns
                   FROM pg_attribute a
                  WHERE a.attrelid = 'messages.archive_rows'::regclass AND a.attnum > 0 AND NOT a.attisdropped) archive
     WHERE CASE WHEN p.end_at > clock_timestamp() THEN with_open AND pg_relation_size(c.oid) > 0 AND (names IS NULL OR c.relname = ANY (names))
                WHEN names IS NULL THEN p.end_at <= clock_timestamp() - coalesce(older_than, '0')
                ELSE c.relname = ANY (names) END
     ORDER BY p.first_at;
END $$;
COMMENT ON FUNCTION messages.closed_archive_partitions(interval, text[], boolean) IS
    'The archive partitions that were completed at least older_than ago, or the completed ones among these names, oldest first: their size, an estimate of the messages per page, and the columns of the archive with their types. With with_open also those that have messages and still take some, of which an export reads what transactions before before_xid archived. Names that no such partition has are left out. PQ004: bad older_than.';
