-- Finishes a batch and leases the next one, in one round trip and one commit. The first columns are those of lease_batch, NULL in
-- a single row if nothing was leased. `archived` is NULL if all were archived, else it has the ids of those that were.
SELECT (a.leased).id, (a.leased).queue_name, (a.leased).message::text, (a.leased).headers::text, (a.leased).reference, (a.leased).topic,
       (a.leased).group_key, (a.leased).priority, (a.leased).attempts, (a.leased).max_attempts, (a.leased).requeues, (a.leased).created_at,
       (a.leased).lock_token, (a.leased).lock_expires_at, a.archived
  FROM messages.archive_and_lease(lock_token => $5::uuid, ids => $6::bigint[], outcomes => $7::jsonb, queue_name => $1::text,
                                  max_messages => $2::integer, lease_for => $3::interval, locked_by => $4::text) a
