-- As far as workers() looks: leases lie at the head of a queue, and no index has them.
SELECT h.id, h.locked_by, h.leased_at, h.lock_expires_at, h.attempts, h.reference
  FROM (SELECT m.id, m.locked_by, m.leased_at, m.lock_expires_at, m.attempts, m.reference
          FROM messages.message_overview m WHERE m.queue_name = %(queue_name)s
         ORDER BY m.priority DESC, m.visible_at LIMIT 10000) h
 WHERE h.lock_expires_at > clock_timestamp()
 ORDER BY h.leased_at LIMIT 50
