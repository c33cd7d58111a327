CREATE OR REPLACE FUNCTION messages.archive_checksums(partition text, first_page bigint, end_page bigint)
RETURNS TABLE (queue_name text, result text, date date, rows bigint, md5 text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET work_mem = '64MB' SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
    part   record;
    values text;
    line   text;
BEGIN
    SELECT * INTO part FROM messages.closed_archive_partition(archive_checksums.partition);
    -- A long text counts by its md5, so that the text of a range stays far below the gigabyte that a value may have.
    SELECT string_agg(CASE WHEN c.kind IN ('bigint', 'integer', 'smallint') THEN format('a.%1$I', c.name)
                           WHEN c.kind = 'timestamp with time zone' THEN format('(extract(epoch FROM a.%1$I) * 1000000)::bigint AS %1$I', c.name)
                           ELSE format('a.%1$I::text', c.name) END, ', ' ORDER BY c.place),
           string_agg(CASE WHEN c.kind IN ('bigint', 'integer', 'smallint', 'timestamp with time zone') THEN format('b.%I', c.name)
                           ELSE format('coalesce(octet_length(b.%1$I) || ''|'' || CASE WHEN octet_length(b.%1$I) > 1024 THEN md5(b.%1$I) ELSE b.%1$I END, ''|'')', c.name)
                      END, ', ''|'', ' ORDER BY c.place) FILTER (WHERE c.name NOT IN ('queue_name', 'result'))
      INTO values, line
      FROM (SELECT a.attname AS name, format_type(a.atttypid, NULL) AS kind, a.attnum AS place FROM pg_attribute a
             WHERE a.attrelid = 'messages.archive_rows'::regclass AND a.attnum > 0 AND NOT a.attisdropped) c;
    -- Through the table, because the partition may have another owner. OFFSET 0 lets each text be built only once.
    RETURN QUERY EXECUTE format($checksums$
        SELECT b.queue_name, b.result, b.date, count(*), md5(string_agg(concat(%1$s, '|', E'\n'), '' ORDER BY b.place))
          FROM (SELECT %2$s, a.ctid AS place, a.archived_at::date AS date FROM messages.archive_rows a
                 WHERE a.archived_at >= %3$L AND a.archived_at < %4$L AND a.ctid >= '(%5$s,0)' AND a.ctid < '(%6$s,0)' OFFSET 0) b
         GROUP BY b.queue_name, b.result, b.date
        $checksums$, line, values, part.first_at, part.end_at, archive_checksums.first_page, archive_checksums.end_page);
END $$;
COMMENT ON FUNCTION messages.archive_checksums(text, bigint, bigint) IS
    'For the pages from first_page to before end_page of a closed archive partition: the number of messages of each queue, result and day (UTC), and the md5 of all their columns in physical order. PQ004: no such partition, or not closed.';
