-- Finishes a batch and leases the next one, in one round trip and one commit. The first columns are those of lease_batch, NULL in
-- a single row if nothing was leased. `archived` is NULL if all were archived, else it has the ids of those that were. The join
-- reads its left side first: what the archive frees of a group can be leased at once.
SELECT l.id, l.queue_name, l.message::text, l.headers::text, l.reference, l.topic, l.group_key, l.priority, l.attempts,
       l.max_attempts, l.requeues, l.created_at, l.lock_token, l.lock_expires_at, done.archived
  FROM (SELECT CASE WHEN pg_catalog.count(*) < pg_catalog.cardinality($6::bigint[])
                    THEN coalesce(pg_catalog.array_agg(a.id), '{}') END AS archived
          FROM messages.archive(lock_token => $5::uuid, ids => $6::bigint[], handled_by => $4::text, outcomes => $7::jsonb) a (id)) done
       LEFT JOIN messages.lease(queue_name => $1::text, max_messages => $2::integer, lease_for => $3::interval,
                                locked_by => $4::text) l ON true
