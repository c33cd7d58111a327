-- A lease as core.consumer.loop reads it. $5 says whether a crash of the server may undo it, which makes the messages ready again:
-- docs/decisions/0015-leases-are-not-flushed.md. In the same statement, because BEGIN, SET LOCAL and COMMIT would be three more
-- round trips.
SELECT l.id, l.queue_name, l.message::text, l.headers::text, l.reference, l.topic, l.group_key, l.priority, l.attempts,
       l.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at
  FROM pg_catalog.set_config('synchronous_commit',
                             CASE WHEN $5 THEN 'off' ELSE pg_catalog.current_setting('synchronous_commit') END, true),
       messages.lease(queue_name => $1::text, max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) l
