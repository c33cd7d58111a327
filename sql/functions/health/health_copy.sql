CREATE OR REPLACE FUNCTION messages.health_copy() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH used AS (
        SELECT greatest((SELECT max(m.id) FROM messages.message_rows m), (SELECT max(a.id) FROM messages.archive_rows a), 0) AS id),
    found (place, severity, finding, fix) AS (
        SELECT 1, 'critical', format('the next message gets an id up to %s, which is taken', u.id), 'SET statement_timeout = 0; SELECT messages.take_over()'
          FROM used u WHERE u.id > coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)
        UNION ALL
        SELECT 2, 'critical', format('no lease sees the messages of queue %s with priority %s', l.queue_name, l.priority), 'SET statement_timeout = 0; SELECT messages.take_over()'
          FROM messages.used_lanes() l
         WHERE NOT EXISTS (SELECT FROM messages.lane p WHERE p.used AND p.queue_name = l.queue_name AND p.priority = l.priority
                                                        AND (p.mark IS NULL OR EXISTS (SELECT FROM pg_class c WHERE c.oid = p.mark)))
           AND EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = l.queue_name)
        UNION ALL
        SELECT 3, 'critical', format('the queue was copied from server %s, and did not take over here', u.server), 'SET statement_timeout = 0; SELECT messages.take_over()'
          FROM messages.upkeep_run u CROSS JOIN pg_control_system() c WHERE u.server <> c.system_identifier
        UNION ALL
        -- Requeue, dismiss and retention would fail: PostgreSQL could not tell a subscriber which row they change.
        SELECT 4, 'critical', format('publication %s has table %s, which has no replica identity', p.pubname, p.tablename),
               string_agg(format('ALTER TABLE %s REPLICA IDENTITY FULL', c.oid::regclass), '; ' ORDER BY c.relname)
          FROM pg_publication_tables p JOIN pg_publication b ON b.pubname = p.pubname AND (b.pubupdate OR b.pubdelete)
          JOIN pg_class top ON top.relnamespace = 'messages'::regnamespace AND top.relname = p.tablename
         -- Of a door, itself and the tables that have its rows: a partition does not take it over.
         CROSS JOIN LATERAL (SELECT top.oid UNION SELECT t.relid FROM pg_partition_tree(top.oid) t WHERE t.isleaf) part
          JOIN pg_class c ON c.oid = part.oid
         WHERE p.schemaname = 'messages'
           AND (c.relreplident = 'n' OR c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary))
         GROUP BY p.pubname, p.tablename)
    SELECT CASE WHEN count(f.place) = 0 THEN 'ok' ELSE 'critical' END,
           CASE WHEN count(f.place) = 0 THEN 'ids and marks are those of this server'
                ELSE (array_agg(f.finding ORDER BY f.place, f.finding))[1]
                     || CASE WHEN count(f.place) > 1 THEN format('; and %s more', count(f.place) - 1) ELSE '' END END,
           (array_agg(f.fix ORDER BY f.place, f.finding))[1]
      FROM (VALUES (true)) AS one (row) LEFT JOIN found f ON true
$$;
COMMENT ON FUNCTION messages.health_copy() IS
    'A check of health(). Whether a queue that was restored from a dump or replicated can be used here, and whether one that is published can change its rows.';
