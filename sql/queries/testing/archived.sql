-- Finished messages with their bodies, in order.
SELECT o.*, a.message AS body, a.headers
  FROM messages.archive_overview o JOIN messages.message_archive a USING (id, archived_at)
 WHERE o.queue_name = coalesce(%(queue_name)s, o.queue_name)
   AND (NOT %(dead)s OR EXISTS (
       SELECT FROM messages.dead_message d WHERE d.id = o.id AND d.archived_at = o.archived_at))
 ORDER BY o.archived_at, o.id
