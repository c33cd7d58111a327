CREATE OR REPLACE FUNCTION messages.queue_sparklines(
    queue_names text[],
    since       timestamptz DEFAULT NULL,
    until       timestamptz DEFAULT NULL,
    step        interval    DEFAULT '1 minute'
) RETURNS TABLE (queue_name text, first_at timestamptz, arrivals bigint[], success bigint[], dead bigint[], depth bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('the number of queues', coalesce(cardinality(queue_sparklines.queue_names), 0), 0, 500);
    RETURN QUERY
    SELECT q.queue_name, min(h.bucket_at), array_agg(h.arrivals ORDER BY h.bucket_at), array_agg(h.success ORDER BY h.bucket_at),
           array_agg(h.completions - h.success ORDER BY h.bucket_at), array_agg(h.depth ORDER BY h.bucket_at)
      FROM messages.queue q
     CROSS JOIN LATERAL messages.queue_history(q.queue_name, queue_sparklines.since, queue_sparklines.until, queue_sparklines.step) h
     WHERE q.queue_name = ANY (queue_sparklines.queue_names)
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY q.queue_name;
END $$;
COMMENT ON FUNCTION messages.queue_sparklines(text[], timestamptz, timestamptz, interval) IS
    'The history of up to 500 queues, one row for each with a number for each step; unknown queues, and those that this login may not observe, are left out. PQ004: too many queues or steps, or a bad step.';
