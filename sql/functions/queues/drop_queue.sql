CREATE OR REPLACE FUNCTION messages.drop_queue(queue_name text, force boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    deleted bigint;
    mark    regclass;
BEGIN
    PERFORM messages.check_read_committed();
    -- Publishers read the queue without a lock: keep all of them out while this runs.
    LOCK TABLE messages.message IN SHARE ROW EXCLUSIVE MODE;
    PERFORM FROM messages.queue q WHERE q.queue_name = drop_queue.queue_name FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(drop_queue.queue_name);
    END IF;
    IF NOT drop_queue.force AND EXISTS (SELECT FROM messages.message m WHERE m.queue_name = drop_queue.queue_name) THEN
        RAISE EXCEPTION 'queue % is not empty', quote_literal(drop_queue.queue_name) USING ERRCODE = 'PQ010',
            HINT = format('Finish its messages, or delete them with it: SELECT messages.drop_queue(%L, force => true)', drop_queue.queue_name);
    END IF;
    DELETE FROM messages.message m WHERE m.queue_name = drop_queue.queue_name;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    DELETE FROM messages.dead_message d WHERE d.queue_name = drop_queue.queue_name;
    DELETE FROM messages.group_member g WHERE g.queue_name = drop_queue.queue_name;
    DELETE FROM messages.group_without_head g WHERE g.queue_name = drop_queue.queue_name;
    DELETE FROM messages.counted_lease c WHERE c.queue_name = drop_queue.queue_name;
    DELETE FROM messages.schedule s WHERE s.queue_name = drop_queue.queue_name;
    DELETE FROM messages.dedup d WHERE d.queue_name = drop_queue.queue_name;
    FOR mark IN
        SELECT unnest(ARRAY[p.low_water, p.sweep_due]) FROM messages.queue_priority p WHERE p.queue_name = drop_queue.queue_name
        UNION ALL
        SELECT unnest(ARRAY[q.depth_left, q.depth_recount_at]) FROM messages.queue q
         WHERE q.queue_name = drop_queue.queue_name AND q.depth_left IS NOT NULL
    LOOP
        EXECUTE format('DROP SEQUENCE %s', mark);
    END LOOP;
    DELETE FROM messages.queue q WHERE q.queue_name = drop_queue.queue_name;
    RETURN deleted;
END $$;
COMMENT ON FUNCTION messages.drop_queue(text, boolean) IS
    'Removes a queue with its bindings and schedules and returns how many unfinished messages went with it; the archive keeps the finished ones. PQ001: unknown queue; PQ004: an isolation level other than read committed; PQ010: not empty and not forced.';
