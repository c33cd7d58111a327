CREATE OR REPLACE FUNCTION messages.health_history() RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    dedup  timestamptz;
    inbox  timestamptz;
    kept   timestamptz;
    size   bigint;
BEGIN
    IF to_regclass('messages.dedup') IS NOT NULL THEN
        EXECUTE 'SELECT min(d.expires_at) FROM messages.dedup d' INTO dedup;
    END IF;
    IF to_regclass('messages.inbox') IS NOT NULL THEN
        EXECUTE 'SELECT min(i.handled_at) FROM messages.inbox i' INTO inbox;
    END IF;
    IF to_regclass('messages.archive_policy') IS NOT NULL THEN
        EXECUTE 'SELECT coalesce(p.retained_at, min(q.created_at)) FROM messages.queue q CROSS JOIN messages.archive_policy p WHERE q.retention IS NOT NULL GROUP BY p.retained_at' INTO kept;
    END IF;
    SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0) INTO size
      FROM pg_inherits i WHERE i.inhparent = 'messages.message_archive'::regclass;
    RETURN QUERY
    SELECT CASE WHEN due.finding IS NULL THEN 'ok' ELSE 'warning' END,
           concat_ws('; ', format('the archive takes %s', pg_size_pretty(size)), due.finding), due.cure
      FROM (VALUES (true)) AS one (row)
      LEFT JOIN LATERAL (
        SELECT string_agg(late.finding, '; ') AS finding, 'SELECT ' || string_agg(DISTINCT late.cure, ', ') AS cure
          FROM (VALUES (moment - dedup > '1 hour', format('dedup keys that expired %s ago are still kept', date_trunc('second', moment - dedup)), 'messages.upkeep()'),
                       (moment - inbox > '31 days', format('the inbox goes back %s and should keep 30 days', date_trunc('second', moment - inbox)), 'messages.upkeep()'),
                       (moment - kept > '1 day', format('retention was last applied %s ago', date_trunc('second', moment - kept)), 'messages.apply_retention()')
               ) AS late (applies, finding, cure)
         WHERE late.applies) due ON true;
END $$;
COMMENT ON FUNCTION messages.health_history() IS
    'Internal, of health(). Whether what is kept for a time is forgotten afterwards: dedup keys, the inbox, the archive of queues with a retention.';
