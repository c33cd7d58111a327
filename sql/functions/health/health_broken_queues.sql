CREATE OR REPLACE FUNCTION messages.health_broken_queues() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN oldest.queue_name IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN oldest.queue_name IS NULL THEN format('no queue is broken, of %s that may break', (SELECT count(*) FROM messages.queue q WHERE q.break_after IS NOT NULL))
                ELSE format('queue %s has been broken for %s; queues that are: %s', oldest.queue_name,
                            date_trunc('second', clock_timestamp() - oldest.broken_since), oldest.queues) END,
           -- It opens by itself when a message succeeds.
           CASE WHEN oldest.queue_name IS NOT NULL THEN format('SELECT messages.resume_queue(%L)', oldest.queue_name) END
      FROM (VALUES (true)) AS one (row)
      LEFT JOIN LATERAL (SELECT q.*, count(*) OVER () AS queues FROM messages.queue q WHERE q.broken_since IS NOT NULL AND (messages.judge_probe(q)).broken_since IS NOT NULL ORDER BY q.broken_since LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_broken_queues() IS 'A check of health(). The queue that has been broken for longest.';
