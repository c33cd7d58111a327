-- A message that is not finished, without its body.
SELECT id, queue_name, priority, created_at, visible_at, leased_at, lock_expires_at, locked_by,
       attempts, requeues, requeued_from, reference, expires_at, body_bytes, topic, group_key, due_at, last_error
  FROM messages.message_overview WHERE id = %(id)s
