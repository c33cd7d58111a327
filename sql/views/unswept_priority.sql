CREATE OR REPLACE VIEW messages.unswept_priority AS
    SELECT p.queue_name, p.priority, p.low_water, q.max_attempts
      FROM messages.queue_priority p JOIN messages.queue q USING (queue_name)
     -- Calling a sweep costs twenty times as much as seeing that there is nothing for it to do, and of many queues most are
     -- empty, or short and in order. The clock is read once: it bounds the walk, which ends before what is delayed.
     CROSS JOIN LATERAL (
        SELECT count(*) AS messages, bool_or(coalesce(m.lock_expires_at, m.expires_at) <= clock_timestamp()) AS is_over,
               min(m.visible_at) FILTER (WHERE m.lock_expires_at IS NULL) AS lowest
          FROM (SELECT m.visible_at, m.lock_expires_at, m.expires_at FROM messages.message m
                 WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= (SELECT clock_timestamp())
                 ORDER BY m.visible_at LIMIT 100) m) head
     WHERE head.messages = 100 OR head.is_over OR head.lowest < messages.stored_moment(p.low_water);
COMMENT ON VIEW messages.unswept_priority IS 'The priorities in which an upkeep has to look for what expired: those whose head needs a sweep, and those that are long.';
