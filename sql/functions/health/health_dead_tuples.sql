CREATE OR REPLACE FUNCTION messages.health_dead_tuples(smallest bigint DEFAULT 67108864) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Autovacuum begins at 10,000 dead versions plus a tenth of the live ones. At twice as many it is not keeping up.
    -- An entry of an index takes about 60 bytes and a page is two thirds full: 100 bytes a message, live or dead.
    SELECT CASE WHEN late.severity = 'ok' AND bloated THEN 'warning' ELSE late.severity END,
           format('dead versions: %s; messages: about %s; table %s, indexes %s, %s per message; last VACUUM %s',
                  s.n_dead_tup, s.n_live_tup, pg_size_pretty(size.heap), pg_size_pretty(size.indexes),
                  pg_size_pretty((size.heap + size.indexes) / greatest(s.n_live_tup, 1)),
                  coalesce(date_trunc('second', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::text || ' ago', 'never'))
           || CASE WHEN late.severity <> 'ok' THEN '. If held_snapshot names what holds back VACUUM, end that first'
                   WHEN bloated THEN format('; index %s: %s, %s bytes per message', largest.name, pg_size_pretty(largest.size), largest.size / entries) ELSE '' END,
           CASE WHEN late.severity <> 'ok' THEN 'SET statement_timeout = 0; VACUUM (ANALYZE) messages.message_rows'
                WHEN bloated THEN format('SET statement_timeout = 0; REINDEX INDEX CONCURRENTLY messages.%I', largest.name) END
      FROM pg_stat_all_tables s
     CROSS JOIN LATERAL (SELECT pg_table_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes, greatest(s.n_live_tup + s.n_dead_tup, 1) AS entries) size
     CROSS JOIN LATERAL (SELECT CASE WHEN s.n_dead_tup > 200000 + 2 * s.n_live_tup THEN 'critical'
                                     WHEN s.n_dead_tup > 20000 + 0.2 * s.n_live_tup THEN 'warning' ELSE 'ok' END AS severity) late
     CROSS JOIN LATERAL (SELECT c.relname AS name, pg_relation_size(c.oid) AS size
                           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = s.relid ORDER BY 2 DESC LIMIT 1) largest
     CROSS JOIN LATERAL (SELECT largest.size > smallest AND largest.size > entries * 1000 AS bloated) judged
     WHERE s.relid = 'messages.message_rows'::regclass
$$;
COMMENT ON FUNCTION messages.health_dead_tuples(bigint) IS
    'A check of health(). Dead row versions and size of the table of messages, when it was vacuumed, and its largest index compared with what is in it; an index of less than smallest bytes is fine. From statistics.';
