SELECT b.batch, b.into_queue, b.expected, b.unfinished, b.closed_at, b.last_error
  FROM messages.batch_overview b
 WHERE b.queue_name = %(queue_name)s AND b.ended_at IS NULL
 ORDER BY b.closed_at DESC LIMIT 50
