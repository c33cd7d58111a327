CREATE OR REPLACE FUNCTION messages.purge_queue(queue_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    gone  bigint[];
BEGIN
    PERFORM messages.check_queue(purge_queue.queue_name, 'consume');
    WHILE clock_timestamp() < began + interval '10 s' LOOP
        BEGIN
            -- A locked message is being leased right now: leave it.
            gone := ARRAY(
                SELECT m.id FROM messages.message_rows m
                 WHERE m.queue_name = purge_queue.queue_name COLLATE "default" AND coalesce(m.lock_expires_at <= clock_timestamp(), true)
                   FOR UPDATE SKIP LOCKED);
            -- Publishers lock the dedup keys first and then the messages: give way to them.
            PERFORM FROM messages.dedup d WHERE d.queue_name = purge_queue.queue_name COLLATE "default" AND d.id = ANY (gone) FOR UPDATE NOWAIT;
            DELETE FROM messages.message_rows m WHERE m.id = ANY (gone);
            DELETE FROM messages.dedup d WHERE d.queue_name = purge_queue.queue_name COLLATE "default" AND d.id = ANY (gone);
            PERFORM messages.fill_groups(purge_queue.queue_name);
            PERFORM messages.record_audit('purge_queue', purge_queue.queue_name, '{}', cardinality(gone));
            RETURN cardinality(gone);
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(random() / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(format('queue %L', purge_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.purge_queue(text) IS
    'Deletes the messages of a queue that are not leased, delayed ones too, without archiving them, and returns how many. Their dedup keys can be used again. PQ001: unknown queue; PQ016: a transaction that publishes under one of them stayed open for ten seconds.';
