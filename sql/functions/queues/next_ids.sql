CREATE OR REPLACE FUNCTION messages.next_ids(queue_name text, max_messages integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(next_ids.queue_name, 'observe');
    PERFORM messages.check_number('max_messages', next_ids.max_messages, 1, 2147483647, required => true);
    RETURN QUERY
    SELECT m.id FROM messages.message_rows m WHERE m.queue_name = next_ids.queue_name COLLATE "default"
     ORDER BY m.priority DESC, m.visible_at, m.id LIMIT next_ids.max_messages;
END $$;
COMMENT ON FUNCTION messages.next_ids(text, integer) IS
    'The first unfinished messages of a queue in the order in which they will be leased, also those that are leased or delayed. A view that hides rows cannot use the order of an index, and would read the whole queue. PQ001: unknown queue; PQ004: no max_messages, or less than 1.';
