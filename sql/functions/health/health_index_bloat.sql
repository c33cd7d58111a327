CREATE OR REPLACE FUNCTION messages.health_index_bloat(smallest bigint DEFAULT 67108864) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- An entry takes about 60 bytes and a page is two thirds full: 100 bytes a message, live or dead.
    SELECT CASE WHEN bloated THEN 'warning' ELSE 'ok' END,
           format('largest index of messages.message: %s with %s, %s bytes per message; messages: about %s',
                  name, pg_size_pretty(size), size / entries, entries),
           CASE WHEN bloated THEN format('REINDEX INDEX CONCURRENTLY messages.%I', name) END
      FROM (SELECT i.indexrelid::regclass AS index, c.relname AS name, pg_relation_size(i.indexrelid) AS size,
                   greatest(s.n_live_tup + s.n_dead_tup, 1) AS entries
              FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_stat_all_tables s ON s.relid = i.indrelid
             WHERE i.indrelid = 'messages.message_rows'::regclass
             ORDER BY 3 DESC LIMIT 1) largest
     CROSS JOIN LATERAL (SELECT size > smallest AND size > entries * 1000 AS bloated) judged
$$;
COMMENT ON FUNCTION messages.health_index_bloat(bigint) IS
    'A check of health(). The largest index of the table of messages, compared with what is in it; an index of less than smallest bytes is fine.';
