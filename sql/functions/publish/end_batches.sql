CREATE OR REPLACE FUNCTION messages.end_batches(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    began  timestamptz := clock_timestamp();
    one    messages.batch;
    total  bigint;
    body   jsonb;
    new_id bigint;
BEGIN
    FOR one IN
        SELECT b.* FROM messages.batch b WHERE b.queue_name = end_batches.queue_name COLLATE "default" AND b.ended_at IS NULL
           FOR UPDATE SKIP LOCKED
    LOOP
        -- One statement, one snapshot: what is requeued meanwhile is counted neither as ended nor as gone. And a new one for each batch.
        SELECT r.total, jsonb_build_object('queue_name', one.queue_name, 'batch', one.batch, 'messages', r.total, 'results', r.results)
          INTO total, body
          FROM messages.batch_results(one.queue_name, one.batch, one.closed_at - interval '30 days') r
         WHERE NOT EXISTS (
            SELECT FROM (SELECT FROM messages.message_rows m
                          WHERE m.queue_name = one.queue_name AND m.headers ? 'batch' AND left(m.headers ->> 'batch', 200) = one.batch
                          ORDER BY m.created_at DESC LIMIT 1) unfinished);
        CONTINUE WHEN total IS NULL OR total < one.expected;
        BEGIN
            INSERT INTO messages.message (queue_name, message, headers, reference) VALUES (one.into_queue, body, one.headers, one.batch)
            RETURNING id INTO new_id;
            UPDATE messages.batch b SET ended_at = clock_timestamp(), end_id = new_id, last_error = NULL
             WHERE b.queue_name = one.queue_name AND b.batch = one.batch;
        EXCEPTION WHEN OTHERS THEN
            -- The others must not wait for it, nor whoever leases fail. It is tried again.
            IF one.last_error IS DISTINCT FROM left(SQLERRM, 500) THEN
                RAISE WARNING 'the end of batch % of queue % cannot be published: %', one.batch, one.queue_name, SQLERRM;
                UPDATE messages.batch b SET last_error = left(SQLERRM, 500) WHERE b.queue_name = one.queue_name AND b.batch = one.batch;
            END IF;
        END;
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT end_batches.queue_name, clock_timestamp() + greatest(least(100 * (clock_timestamp() - began), interval '30 s'), '1 s'), '{}'
     WHERE EXISTS (SELECT FROM messages.batch b WHERE b.queue_name = end_batches.queue_name COLLATE "default" AND b.ended_at IS NULL);
END $$;
COMMENT ON FUNCTION messages.end_batches(text) IS
    'Publishes the end of each closed batch of a queue of which no message is unfinished, and as many have ended as are expected: once, because it locks the row of the batch. What another session ends now is left to that one. If any is left open, a timer comes a second later, or after a hundred times as long as this took, but within 30 seconds.';
