CREATE OR REPLACE FUNCTION messages.delete_queue(queue_name text, force boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    deleted  bigint;
    relation text;
BEGIN
    PERFORM FROM messages.queue q WHERE q.queue_name = delete_queue.queue_name COLLATE "default" FOR UPDATE NOWAIT;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(delete_queue.queue_name);
    END IF;
    IF NOT delete_queue.force AND EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = delete_queue.queue_name COLLATE "default") THEN
        RAISE EXCEPTION 'queue % is not empty', quote_literal(delete_queue.queue_name) USING ERRCODE = 'PQ010',
            HINT = format('Finish its messages, or delete them with it: SELECT messages.drop_queue(%L, force => true)', delete_queue.queue_name);
    END IF;
    -- Take all locks or none, without waiting.
    FOREACH relation IN ARRAY '{dead_message,dispatch,dedup,topic_binding,lane,queue_grant}'::text[] LOOP
        EXECUTE format('SELECT FROM messages.%I WHERE queue_name = $1 FOR UPDATE NOWAIT', relation) USING delete_queue.queue_name;
    END LOOP;
    DELETE FROM messages.message_rows m WHERE m.queue_name = delete_queue.queue_name COLLATE "default";
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- The others refer to the queue, and go with its row.
    FOREACH relation IN ARRAY '{timer,dead_message,dispatch,dedup}'::text[] LOOP
        EXECUTE format('DELETE FROM messages.%I WHERE queue_name = $1', relation) USING delete_queue.queue_name;
    END LOOP;
    -- A session that read the queue a short time ago still reads and sets its marks.
    INSERT INTO messages.unused_sequence (sequence)
    SELECT l.mark FROM messages.lane l WHERE l.queue_name = delete_queue.queue_name COLLATE "default" AND l.mark IS NOT NULL
    UNION ALL
    SELECT own.sequence FROM messages.queue q CROSS JOIN unnest(ARRAY[q.look_due, q.rate_mark]) AS own (sequence)
     WHERE q.queue_name = delete_queue.queue_name COLLATE "default" AND own.sequence IS NOT NULL;
    -- Its archive stays, for as long as was promised.
    DELETE FROM messages.dropped_queue d WHERE d.queue_name = delete_queue.queue_name COLLATE "default";
    INSERT INTO messages.dropped_queue (queue_name, retention)
    SELECT r.queue_name, r.retention FROM messages.archive_retention r WHERE r.queue_name = delete_queue.queue_name COLLATE "default";
    DELETE FROM messages.queue q WHERE q.queue_name = delete_queue.queue_name COLLATE "default";
    RETURN deleted;
END $$;
COMMENT ON FUNCTION messages.delete_queue(text, boolean) IS
    'Does what drop_queue does, once nobody else can change a message. 55P03: somebody is changing what goes with the queue.';
