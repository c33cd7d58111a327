CREATE OR REPLACE FUNCTION messages.health_history() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH age AS (
        SELECT clock_timestamp() - (SELECT min(d.expires_at) FROM messages.dedup d) AS dedup,
               clock_timestamp() - (SELECT min(i.handled_at) FROM messages.inbox i) AS inbox,
               clock_timestamp() - (SELECT coalesce(CASE WHEN p.retention_applied_at <= clock_timestamp() THEN p.retention_applied_at END, min(r.since))
                                      FROM messages.archive_policy p CROSS JOIN messages.archive_retention r GROUP BY p.retention_applied_at) AS retention),
    late (finding) AS (
        SELECT format('dedup keys that expired %s ago are still kept', date_trunc('second', dedup)) FROM age WHERE dedup > '1 hour'
        UNION ALL
        SELECT format('the inbox keeps 30 days and goes back %s', date_trunc('second', inbox)) FROM age WHERE inbox > '30 days 01:00'
        UNION ALL
        SELECT format('retention was last applied %s ago', date_trunc('second', retention)) FROM age WHERE retention > '1 day')
    SELECT CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           concat_ws('; ', string_agg(late.finding, '; '),
                format('the archive takes %s; queues without a retention: %s', pg_size_pretty(
                    (SELECT sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits i WHERE i.inhparent = 'messages.archive_rows'::regclass)),
                    (SELECT count(*) FROM messages.queue q WHERE q.retention IS NULL))),
           CASE WHEN count(*) > 0 THEN 'SELECT messages.upkeep()' END
      FROM late
$$;
COMMENT ON FUNCTION messages.health_history() IS
    'A check of health(). Whether what is kept for a limited time is deleted on time: dedup keys, the inbox, the archive of queues with a retention.';
