-- Leases what the function of a drain gets, with JSON as its text. The setting is part of the statement, because a crash
-- of the server may undo a lease (docs/decisions/0015-leases-are-not-flushed.md).
SELECT l.id, l.message::text, l.reference, l.attempts::integer, l.headers::text, l.topic, l.group_key, l.created_at,
       l.max_attempts::integer, l.lock_token
  FROM pg_catalog.set_config('synchronous_commit', 'off', true),
       messages.lease(%(queue_name)s, %(max_messages)s, %(lease_for)s, %(locked_by)s) AS l
