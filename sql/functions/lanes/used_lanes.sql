CREATE OR REPLACE FUNCTION messages.used_lanes() RETURNS TABLE (queue_name text, priority smallint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- From one priority to the next in the index, however many messages each has.
    WITH RECURSIVE level AS (
        (SELECT m.queue_name, m.priority FROM messages.message_rows m ORDER BY m.queue_name, m.priority DESC LIMIT 1)
        UNION ALL
        SELECT next.* FROM level l CROSS JOIN LATERAL (
            (SELECT m.queue_name, m.priority FROM messages.message_rows m
              WHERE m.queue_name = l.queue_name AND m.priority < l.priority ORDER BY m.priority DESC LIMIT 1)
            UNION ALL
            (SELECT m.queue_name, m.priority FROM messages.message_rows m
              WHERE m.queue_name > l.queue_name ORDER BY m.queue_name, m.priority DESC LIMIT 1)
            LIMIT 1) next)
    SELECT l.queue_name, l.priority FROM level l
$$;
COMMENT ON FUNCTION messages.used_lanes() IS 'The queues that have messages, with their priorities. Locks no mark.';
