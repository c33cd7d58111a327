CREATE OR REPLACE FUNCTION messages.health_dead_tuples() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Autovacuum begins at 10,000 dead versions plus a tenth of the live ones. At twice as many it is not keeping up.
    SELECT late.severity,
           format('dead versions: %s; messages: about %s; table %s, indexes %s, %s per message; last VACUUM %s',
                  s.n_dead_tup, s.n_live_tup, pg_size_pretty(size.heap), pg_size_pretty(size.indexes),
                  pg_size_pretty((size.heap + size.indexes) / greatest(s.n_live_tup, 1)),
                  coalesce(date_trunc('second', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::text || ' ago', 'never'))
           || CASE WHEN late.severity <> 'ok' THEN '. If another check names what holds back VACUUM, end that first' ELSE '' END,
           CASE WHEN late.severity <> 'ok' THEN 'VACUUM (ANALYZE) messages.message_rows' END
      FROM pg_stat_all_tables s
     CROSS JOIN LATERAL (SELECT pg_table_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes) size
     CROSS JOIN LATERAL (SELECT CASE WHEN s.n_dead_tup > 200000 + 2 * s.n_live_tup THEN 'critical'
                                     WHEN s.n_dead_tup > 20000 + 0.2 * s.n_live_tup THEN 'warning' ELSE 'ok' END AS severity) late
     WHERE s.relid = 'messages.message_rows'::regclass
$$;
COMMENT ON FUNCTION messages.health_dead_tuples() IS
    'A check of health(). Dead row versions and size of the table of messages, and when it was vacuumed. From statistics.';
