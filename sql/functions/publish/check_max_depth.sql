CREATE OR REPLACE FUNCTION messages.check_max_depth(queue_name text, max_depth bigint, number bigint, entered boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    there  bigint      := (SELECT d.messages FROM messages.depth d WHERE d.queue_name = check_max_depth.queue_name COLLATE "default"
                                                                     AND d.counted_at BETWEEN moment - interval '1 s' AND moment);
BEGIN
    IF there IS NULL OR there + check_max_depth.number > check_max_depth.max_depth THEN
        SELECT count(*) - CASE WHEN entered THEN number ELSE 0 END INTO there FROM (
            SELECT FROM messages.message_rows m WHERE m.queue_name = check_max_depth.queue_name COLLATE "default"
             ORDER BY m.priority DESC, m.visible_at LIMIT max_depth + number) counted;
        -- Whoever drops the queue has this lock when it comes to the row.
        LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;
        UPDATE messages.depth d SET messages = there, counted_at = moment
         WHERE d.ctid = (SELECT d.ctid FROM messages.depth d WHERE d.queue_name = check_max_depth.queue_name COLLATE "default" FOR UPDATE SKIP LOCKED);
    END IF;
    IF there + check_max_depth.number > check_max_depth.max_depth THEN
        RAISE EXCEPTION 'queue % is full: its max_depth is %', quote_literal(check_max_depth.queue_name), check_max_depth.max_depth
            USING ERRCODE = 'PQ007',
                  HINT = format('Publish later, or raise the limit: SELECT messages.alter_queue(%L, max_depth => …)', check_max_depth.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_max_depth(text, bigint, bigint, boolean) IS
    'Raises PQ007 if a queue has no room for so many more messages, which may have entered it already; the count may be a second old. What is published within that second, or not committed, may pass the limit.';
