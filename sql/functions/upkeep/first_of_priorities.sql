CREATE OR REPLACE FUNCTION messages.first_of_priorities() RETURNS TABLE (queue_name text, priority smallint, first_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET max_parallel_workers_per_gather = 0 SET enable_indexscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF messages.is_mostly_dead() THEN
        RETURN QUERY SELECT m.queue_name, m.priority, min(m.visible_at) FROM messages.message m GROUP BY m.queue_name, m.priority;
    ELSE
        RETURN QUERY SELECT p.queue_name, p.priority, '-infinity'::timestamptz FROM messages.queue_priority p;
    END IF;
END $$;
COMMENT ON FUNCTION messages.first_of_priorities() IS
    'No message of a priority comes before first_at, and a priority that is missing has none. Where a look along the index costs less than to read the table, that is -infinity.';
