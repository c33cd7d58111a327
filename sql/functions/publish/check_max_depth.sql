CREATE OR REPLACE FUNCTION messages.check_max_depth(queue_name text, arrived bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    queue  messages.queue;
    free   bigint;
    young  bigint;
BEGIN
    SELECT * INTO queue FROM messages.queue q WHERE q.queue_name = check_max_depth.queue_name;
    free := coalesce(pg_sequence_last_value(queue.depth_left), 0) - arrived;
    -- The deeper the queue, the more counting costs. So count only when the room that was last found is used up, and for at
    -- most 2 % of the time while the queue stays full.
    IF free < 0 AND moment >= messages.stored_moment(queue.depth_recount_at) THEN
        SELECT queue.max_depth - count(*), count(*) FILTER (WHERE counted.created_at >= now()) INTO free, young FROM (
            SELECT m.created_at FROM messages.message m WHERE m.queue_name = check_max_depth.queue_name
             ORDER BY m.priority DESC, m.visible_at LIMIT queue.max_depth + arrived) AS counted;
        -- What this transaction published may go with it, and then the queue is not full. Nor does a pause pay where the
        -- room lasts for long.
        IF (free + young) * 50 < queue.max_depth THEN
            PERFORM messages.store_moment(queue.depth_recount_at, clock_timestamp() + 50 * (clock_timestamp() - moment));
        END IF;
    END IF;
    IF free < 0 THEN
        PERFORM setval(queue.depth_left, greatest(free + arrived, 0));     -- others have the room that this statement gives back
        RAISE EXCEPTION 'queue % is full: its max_depth is %', quote_literal(queue.queue_name), queue.max_depth
            USING ERRCODE = 'PQ007',
                  HINT = format('Publish later, or raise the limit: SELECT messages.alter_queue(%L, max_depth => …)', queue.queue_name);
    END IF;
    PERFORM setval(queue.depth_left, free);
END $$;
COMMENT ON FUNCTION messages.check_max_depth(text, bigint) IS
    'Raises PQ007 if the messages that were just inserted exceed the max_depth of the queue.';
