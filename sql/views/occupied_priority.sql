CREATE OR REPLACE VIEW messages.occupied_priority AS
    SELECT p.queue_name, p.priority, p.low_water, q.max_attempts, head.first_at,
           head.messages = 100 OR head.is_over IS TRUE OR coalesce(head.lowest < messages.stored_moment(p.low_water), false) AS is_unswept
      FROM messages.queue_priority p JOIN messages.queue q USING (queue_name)
      JOIN messages.first_of_priorities() f ON f.queue_name = p.queue_name AND f.priority = p.priority
     -- Calling a sweep costs twenty times as much as seeing that there is nothing for it to do, and of many queues most are
     -- empty, or short and in order. The clock is read once: it bounds the walk, which ends before what is delayed.
     CROSS JOIN LATERAL (
        SELECT count(*) AS messages, bool_or(coalesce(m.lock_expires_at, m.expires_at) <= clock_timestamp()) AS is_over,
               min(m.visible_at) FILTER (WHERE m.lock_expires_at IS NULL) AS lowest, min(m.visible_at) AS first_at
          FROM (SELECT m.visible_at, m.lock_expires_at, m.expires_at FROM messages.message m
                 WHERE m.queue_name = p.queue_name AND m.priority = p.priority
                   AND m.visible_at >= f.first_at AND m.visible_at <= (SELECT clock_timestamp())
                 ORDER BY m.visible_at LIMIT 100) m) head
     WHERE head.messages > 0;
COMMENT ON VIEW messages.occupied_priority IS 'The priorities that have messages which are not delayed, and where the first of them is. is_unswept: an upkeep has to look for what expired, because the head needs a sweep, or is only the head.';
