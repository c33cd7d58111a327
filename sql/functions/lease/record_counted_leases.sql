CREATE OR REPLACE FUNCTION messages.record_counted_leases(queue_name text, lock_token uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO messages.counted_lease (queue_name, id, lock_token)
    SELECT m.queue_name, m.id, m.lock_token FROM messages.message m
     WHERE m.queue_name = record_counted_leases.queue_name AND m.lock_expires_at > clock_timestamp()
       AND (record_counted_leases.lock_token IS NULL OR m.lock_token = record_counted_leases.lock_token)
    ON CONFLICT (queue_name, id) DO UPDATE SET lock_token = excluded.lock_token
$$;
COMMENT ON FUNCTION messages.record_counted_leases(text, uuid) IS
    'Records what was just leased from a queue with a max_leased; with lock_token NULL all leases of a queue that gets one.';
