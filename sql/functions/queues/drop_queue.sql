CREATE OR REPLACE FUNCTION messages.drop_queue(queue_name text, force boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    gone  bigint;
BEGIN
    PERFORM messages.check_read_committed();
    WHILE clock_timestamp() < began + interval '10 s' LOOP
        BEGIN
            -- Publishers read the queue without a lock: keep all of them out while this runs.
            PERFORM messages.lock_briefly('messages.message_rows', 'EXCLUSIVE');
            gone := messages.delete_queue(drop_queue.queue_name, coalesce(drop_queue.force, false));
            PERFORM messages.record_audit('drop_queue', drop_queue.queue_name, jsonb_build_object('force', drop_queue.force), gone);
            RETURN gone;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            -- Somebody who waits behind this lock holds rows that go with the queue: give way, or both wait forever.
            PERFORM pg_sleep(random() / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(format('queue %L', drop_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.drop_queue(text, boolean) IS
    'Removes a queue with its bindings and returns how many unfinished messages went with it; the archive keeps the finished ones for as long as the retention of the queue says. Waits some seconds until nobody is in the middle of a change of a message. PQ001: unknown queue; PQ004: an isolation level other than read committed; PQ010: not empty and not forced; PQ016: a transaction that changed a message stayed open.';
