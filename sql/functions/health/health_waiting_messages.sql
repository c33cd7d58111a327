CREATE OR REPLACE FUNCTION messages.health_waiting_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH waiting AS (
        SELECT r.queue_name, r.oldest_age, false AS paused FROM messages.ready_queues(count_up_to => 1) r WHERE r.oldest_age IS NOT NULL
        UNION ALL
        SELECT q.queue_name, clock_timestamp() - min(first.visible_at), true
          FROM messages.queue q JOIN messages.lane p USING (queue_name)
         CROSS JOIN LATERAL (
            SELECT m.visible_at FROM messages.message_rows m
             WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= (SELECT clock_timestamp())
             ORDER BY m.visible_at LIMIT 1) first
         WHERE q.paused GROUP BY q.queue_name)
    SELECT CASE WHEN oldest.oldest_age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN oldest.queue_name IS NULL THEN 'no message waits'
                ELSE format('the oldest message of queue %s waits for %s%s; %s', oldest.queue_name, date_trunc('second', oldest.oldest_age),
                            CASE WHEN oldest.paused THEN ', the queue is paused' ELSE '' END, late.queues) END,
           CASE WHEN oldest.oldest_age > waiting_for THEN
               CASE WHEN oldest.paused THEN format('SELECT messages.alter_queue(%L, paused => false)', oldest.queue_name)
                    ELSE format('-- start a consumer of queue %s', oldest.queue_name) END END
      FROM (SELECT format('queues that wait too long: %s', count(*)) AS queues
              FROM waiting w WHERE w.oldest_age > waiting_for) late
      LEFT JOIN LATERAL (SELECT * FROM waiting w ORDER BY w.oldest_age DESC LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_waiting_messages(interval) IS
    'A check of health(). The queue whose oldest message that is ready waits longest.';
