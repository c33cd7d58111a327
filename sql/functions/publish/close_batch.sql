CREATE OR REPLACE FUNCTION messages.close_batch(
    queue_name text, batch text, into_queue text, expected bigint DEFAULT NULL, headers jsonb DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    is_open boolean;
BEGIN
    PERFORM messages.check_queue(close_batch.queue_name, 'publish'), messages.check_queue(close_batch.into_queue, 'publish'),
            messages.check_length('batch', close_batch.batch, 1, 200, required => true),
            messages.check_number('expected', close_batch.expected, 0, 1000000000000), messages.check_headers(close_batch.headers);
    INSERT INTO messages.batch AS b (queue_name, batch, into_queue, expected, headers)
    VALUES (close_batch.queue_name, close_batch.batch, close_batch.into_queue, close_batch.expected, close_batch.headers)
    ON CONFLICT (queue_name, batch) DO UPDATE
       SET into_queue = excluded.into_queue, expected = excluded.expected, headers = excluded.headers WHERE b.ended_at IS NULL;
    is_open := FOUND;
    INSERT INTO messages.timer (queue_name, at, ids) SELECT close_batch.queue_name, clock_timestamp(), '{}' WHERE is_open;
    -- The ring lets whoever waits look at the timers. No message has the id 0.
    PERFORM messages.ring_for(close_batch.queue_name, 0) WHERE is_open;
    RETURN is_open;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('batch %L of queue %L', left(close_batch.batch, 200), close_batch.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.close_batch(text, text, text, bigint, jsonb) IS
    'Says that all messages of a queue with this header batch are published. Once none of them is unfinished, and at least expected of them have ended, one message {"queue_name", "batch", "messages", "results": {result: number}} is published to into_queue with these headers. Messages of a transaction that is open are not seen: publish and close in one transaction, or give expected. Returns true; a batch that is open already gets the new arguments. Returns false, and changes nothing, for a batch that ended in the last 30 days. PQ001: unknown queue; PQ004, PQ005: bad argument; PQ016: another transaction closes or ends the batch for more than three seconds.';
