CREATE OR REPLACE FUNCTION messages.health_waiting_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH waiting AS (
        SELECT r.queue_name, r.oldest_age, false AS paused FROM messages.ready_queues(count_up_to => 1) r WHERE r.oldest_age IS NOT NULL
        UNION ALL
        SELECT q.queue_name, clock_timestamp() - min(first.visible_at), true
          FROM messages.queue q JOIN messages.queue_priority p USING (queue_name)
         CROSS JOIN LATERAL (
            SELECT m.visible_at FROM messages.message m
             WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= (SELECT clock_timestamp())
             ORDER BY m.visible_at LIMIT 1) first
         WHERE q.paused GROUP BY q.queue_name
        UNION ALL
        -- First in a group without a head: the next sweep or upkeep makes it ready, unless a transaction stays open.
        SELECT q.queue_name, clock_timestamp() - min(first.due_at), q.paused
          FROM (SELECT DISTINCT w.queue_name, w.group_key FROM messages.group_without_head w) w JOIN messages.queue q USING (queue_name)
         CROSS JOIN LATERAL (
            SELECT m.due_at FROM messages.group_follower f JOIN messages.message m ON m.id = f.id
             WHERE f.group_hash = hashtextextended(w.group_key, hashtextextended(w.queue_name, 0))
               AND f.queue_name = w.queue_name AND f.group_key = w.group_key
             ORDER BY f.id LIMIT 1) first
         WHERE first.due_at <= clock_timestamp()
           AND NOT EXISTS (SELECT FROM messages.group_head h
                            WHERE h.queue_name = w.queue_name COLLATE "C" AND h.group_key = w.group_key COLLATE "C" AND h.id IS NOT NULL)
         GROUP BY q.queue_name, q.paused)
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
    'A check of health(). The queue whose oldest message that is ready, or is first in a group without a head, waits longest.';
