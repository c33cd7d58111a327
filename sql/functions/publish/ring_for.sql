CREATE OR REPLACE FUNCTION messages.ring_for(queue_name text, id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy record;
BEGIN
    SELECT q.notify, q.lock_key INTO policy FROM messages.queue q WHERE q.queue_name = ring_for.queue_name COLLATE "default";
    IF policy.notify IS NULL OR policy.notify = 'off' OR messages.rings_are_paused() THEN
        RETURN;
    END IF;
    IF policy.notify = 'gated' THEN
        IF NOT pg_try_advisory_xact_lock(policy.lock_key, -1) THEN       -- another session rings for the queue
            RETURN;
        END IF;
    END IF;
    PERFORM pg_notify('new_message', ring_for.id::text);
END $$;
COMMENT ON FUNCTION messages.ring_for(text, bigint) IS
    'Rings new_message for a message that was published or has come back, as the notify of the queue says.';
