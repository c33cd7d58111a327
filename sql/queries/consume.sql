-- The statements that a consumer sends again and again. core.consumer.loop and the tasks of a drain read their rows by position.

-- name: lease_batch
-- A lease as core.consumer.loop reads it. $5 says whether a crash of the server may undo it, which makes the messages ready again:
-- docs/decisions/0015-leases-are-not-flushed.md. In the same statement, because BEGIN, SET LOCAL and COMMIT would be three more
-- round trips.
SELECT l.id, l.queue_name, l.message::text, l.headers::text, l.reference, l.topic, l.group_key, l.priority, l.attempts,
       l.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at
  FROM pg_catalog.set_config('synchronous_commit',
                             CASE WHEN $5 THEN 'off' ELSE pg_catalog.current_setting('synchronous_commit') END, true),
       messages.lease(queue_name => $1::text, max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) l

-- name: archive_and_lease_batch
-- Finishes a batch and leases the next one, in one round trip and one commit. The first columns are those of lease_batch, NULL in
-- a single row if nothing was leased. `archived` is NULL if all were archived, else it has the ids of those that were.
SELECT (a.leased).id, (a.leased).queue_name, (a.leased).message::text, (a.leased).headers::text, (a.leased).reference, (a.leased).topic,
       (a.leased).group_key, (a.leased).priority, (a.leased).attempts, (a.leased).max_attempts, (a.leased).requeues, (a.leased).created_at,
       (a.leased).lock_token, (a.leased).lock_expires_at, a.archived
  FROM messages.archive_and_lease(lock_token => $5::uuid, ids => $6::bigint[], outcomes => $7::jsonb, queue_name => $1::text,
                                  max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) a

-- name: lease_rows
-- Leases what the function of a drain gets, with JSON as its text. The setting is part of the statement, because a crash
-- of the server may undo a lease (docs/decisions/0015-leases-are-not-flushed.md).
SELECT l.id, l.message::text, l.reference, l.attempts::integer, l.headers::text, l.topic, l.group_key, l.created_at,
       l.max_attempts::integer, l.lock_token
  FROM pg_catalog.set_config('synchronous_commit', 'off', true),
       messages.lease(%(queue_name)s, %(max_messages)s, %(lease_for)s, %(locked_by)s) AS l

-- name: lease_policy
-- The columns of verbs.lease_policy, as core.consumer.loop reads them.
SELECT lease_for, handler_timeout, counts_leases, limits_rate FROM messages.lease_policy(queue_name => $1::text)
