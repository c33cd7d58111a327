CREATE OR REPLACE FUNCTION messages.open_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Whoever has the row opens or changes the queue.
    UPDATE messages.queue q SET broken_since = NULL
     WHERE q.ctid = (SELECT q.ctid FROM messages.queue q
                      WHERE q.queue_name = open_queue.queue_name COLLATE "default" AND q.broken_since IS NOT NULL
                        AND (messages.judge_probe(q)).broken_since IS NULL FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM messages.ring(q.queue_name, 1) FROM messages.queue q
          WHERE q.queue_name = open_queue.queue_name COLLATE "default" AND q.notify <> 'off';
    END IF;
END $$;
COMMENT ON FUNCTION messages.open_queue(text) IS
    'Ends the broken_since of a queue if the message that was let through last has succeeded, and rings for its consumers.';
