CREATE OR REPLACE FUNCTION messages.health_waiting_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH asked AS MATERIALIZED (SELECT clock_timestamp() AS moment),
    waiting AS (
        SELECT q.queue_name, moment - min(coalesce(first.at, later.at)) AS oldest_age, q.paused
          FROM asked CROSS JOIN messages.used_lanes() l JOIN messages.queue q USING (queue_name)
         CROSS JOIN LATERAL (
            SELECT min(greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END))
                       FILTER (WHERE q.paused OR m.lock_expires_at IS NULL AND coalesce(m.expires_at > moment, true)) AS at, count(*) AS seen
              FROM (SELECT * FROM messages.message_rows m WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at <= moment
                     ORDER BY m.visible_at LIMIT 20) m) first
         -- The mark leads past many leases. It is locked until the commit, so this is not for each queue. It is read before the
         -- messages, or the planner walks over all that are leased and compares each with the mark.
          LEFT JOIN LATERAL (
            SELECT messages.stored_time(p.mark, moment) AS from_at FROM messages.lane p
             WHERE first.at IS NULL AND first.seen = 20 AND p.queue_name = l.queue_name AND p.priority = l.priority) mark ON true
          LEFT JOIN LATERAL (
            SELECT greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END) AS at FROM messages.message_rows m
             WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at BETWEEN mark.from_at AND moment
               AND m.lock_expires_at IS NULL AND coalesce(m.expires_at > moment, true)
             ORDER BY m.visible_at LIMIT 1) later ON true
         GROUP BY q.queue_name, q.paused, moment HAVING min(coalesce(first.at, later.at)) IS NOT NULL)
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
