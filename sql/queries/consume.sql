-- The statements that a consumer sends again and again. core.consumer.loop and the tasks of a drain read their rows by position: they put
-- the columns of the lease l that they need in place of {columns}.

-- name: lease_batch
-- A lease as core.consumer.loop reads it. $5 says whether a crash of the server may undo it, which makes the messages ready again:
-- docs/decisions/0015-leases-are-not-flushed.md. In the same statement, because BEGIN, SET LOCAL and COMMIT would be three more
-- round trips.
SELECT {columns}
  FROM pg_catalog.set_config('synchronous_commit',
                             CASE WHEN $5 THEN 'off' ELSE pg_catalog.current_setting('synchronous_commit') END, true),
       messages.lease(queue_name => $1::text, max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) l

-- name: archive_and_lease_batch
-- Finishes a batch and leases the next one, in one round trip and one commit. The first columns are those of lease_batch, NULL in
-- a single row if nothing was leased. `archived` is NULL if all were archived, else it has the ids of those that were.
SELECT {columns}, a.archived
  FROM messages.archive_and_lease(lock_token => $5::uuid, ids => $6::bigint[], outcomes => $7::jsonb, queue_name => $1::text,
                                  max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) a
 CROSS JOIN LATERAL (SELECT (a.leased).*) l

-- name: lease_rows
-- Leases what the function of a drain gets, with JSON as its text. The setting is part of the statement, because a crash
-- of the server may undo a lease (docs/decisions/0015-leases-are-not-flushed.md).
SELECT {columns}, l.max_attempts, l.lock_token
  FROM pg_catalog.set_config('synchronous_commit', 'off', true),
       messages.lease(%(queue_name)s, %(max_messages)s, %(lease_for)s, %(locked_by)s) AS l

-- name: lease_policy
-- The columns of verbs.lease_policy, as core.consumer.loop reads them.
SELECT lease_for, handler_timeout, counts_leases, limits_rate FROM messages.lease_policy(queue_name => $1::text)
