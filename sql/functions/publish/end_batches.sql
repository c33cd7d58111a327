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
        -- One statement for both questions, because it has one snapshot: a message that is requeued meanwhile is either unfinished or ended
        -- in it. If a message is unfinished, there is no row, and the total is NULL.
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
            -- Neither the other batches nor whoever leases may suffer from it. The timer below tries it again.
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
    'Publishes the end of each closed batch of a queue that has no unfinished message, and of which as many have ended as are expected: once, because it locks the row of the batch. A batch that another session ends now is left to that one. If any batch is left open, sets a timer for a second later, or for a hundred times as long as this took, but at most 30 seconds.';
