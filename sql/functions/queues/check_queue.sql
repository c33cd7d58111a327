CREATE OR REPLACE FUNCTION messages.check_queue(queue_name text, privilege text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_access(check_queue.queue_name, check_queue.privilege);
    IF NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = check_queue.queue_name COLLATE "default") THEN
        PERFORM messages.raise_unknown_queue(check_queue.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_queue(text, text) IS
    'Raises 42501 if this login is limited and the queue was not granted to it, PQ001 if there is no such queue.';
