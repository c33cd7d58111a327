CREATE OR REPLACE FUNCTION messages.lease_taken_over() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF OLD.lock_expires_at < NEW.lock_expires_at AND OLD.lock_expires_at <= clock_timestamp() THEN
        NEW.lock_token := NULL;
    END IF;
    IF NEW.lock_token IS NULL AND NEW.lock_expires_at > clock_timestamp() THEN
        INSERT INTO messages.counted_lease (queue_name, id)
        SELECT q.queue_name, NEW.id FROM messages.queue q WHERE q.queue_name = NEW.queue_name AND q.max_leased IS NOT NULL
        ON CONFLICT (queue_name, id) DO UPDATE SET lock_token = NULL;
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION messages.lease_taken_over() IS
    'Trigger. When plain SQL locks a message, the lease counts towards the max_leased of the queue, and the token of an old lease becomes worthless.';
