CREATE OR REPLACE FUNCTION messages.health_dead_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN oldest.age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN oldest.age IS NULL THEN 'no dead message waits for a remedy'
                ELSE format('dead messages that wait for a remedy: %s; the oldest (%s, of queue %s) for %s',
                            CASE WHEN counted.count > 1000 THEN 'more than 1000' ELSE counted.count::text END,
                            oldest.result, oldest.queue_name, date_trunc('second', oldest.age)) END,
           CASE WHEN oldest.age > waiting_for THEN
               CASE WHEN oldest.result IN ('failed', 'lock_expired') THEN format('SELECT * FROM messages.requeue_dead(%L)', oldest.queue_name)
                    ELSE format('SELECT * FROM messages.dead_causes(%L) -- then requeue or dismiss them', oldest.queue_name) END END
      FROM (SELECT count(*) FROM (SELECT FROM messages.dead_message LIMIT 1001) bounded) counted
      LEFT JOIN LATERAL (
        SELECT first.* FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT d.queue_name, d.result, clock_timestamp() - d.archived_at AS age FROM messages.dead_message d
             WHERE d.queue_name = q.queue_name ORDER BY d.archived_at LIMIT 1) first
         ORDER BY first.age DESC LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_dead_messages(interval) IS
    'A check of health(). How long dead messages have waited for a remedy; the fix requeues those of one queue that failed, and shows why others died.';
