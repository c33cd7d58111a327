CREATE OR REPLACE FUNCTION messages.record_counted_leases(
    queue_name text, lock_token uuid DEFAULT NULL, number integer DEFAULT NULL
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
    -- What was just leased was the oldest: in the order of the leases it is found before what waits.
    INSERT INTO messages.counted_lease (queue_name, id, lock_token)
    SELECT m.queue_name, m.id, m.lock_token FROM messages.message m
     WHERE m.queue_name = record_counted_leases.queue_name COLLATE "default"
       AND CASE WHEN record_counted_leases.lock_token IS NULL THEN m.lock_expires_at > clock_timestamp()
                ELSE m.lock_token = record_counted_leases.lock_token END
     ORDER BY m.priority DESC, m.visible_at LIMIT record_counted_leases.number
    ON CONFLICT (queue_name, id) DO UPDATE SET lock_token = excluded.lock_token
$$;
COMMENT ON FUNCTION messages.record_counted_leases(text, uuid, integer) IS
    'Records what was just leased from a queue with a max_leased, so many messages under one token; without a token all leases of a queue that gets a max_leased.';
