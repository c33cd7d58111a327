-- The same without a lease, for the rest of the transaction.
SELECT l.id, l.message::text, l.reference, l.attempts::integer, l.headers::text, l.topic, l.group_key, l.created_at,
       l.max_attempts::integer, l.lock_token
  FROM messages.lock_ready(%(queue_name)s, %(max_messages)s, %(topic)s) AS l
