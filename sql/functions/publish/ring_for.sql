CREATE OR REPLACE FUNCTION messages.ring_for(queue_name text, id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_notify('new_message', ring_for.id::text) FROM messages.queue q
      WHERE q.queue_name = ring_for.queue_name COLLATE "default" AND NOT messages.rings_are_paused()
        AND (q.notify = 'always' OR q.notify = 'gated' AND pg_try_advisory_xact_lock(q.lock_key, -1));
END $$;
COMMENT ON FUNCTION messages.ring_for(text, bigint) IS
    'Rings new_message for a message that was published or has come back, as the notify of the queue says.';
