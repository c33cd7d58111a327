CREATE OR REPLACE FUNCTION messages.scan(queue_names text[], count_up_to integer DEFAULT 1000)
RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval, topics text[], oldest_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.look(q.queue_name) FROM messages.queue q
      WHERE q.queue_name = ANY (scan.queue_names)
        AND ((SELECT r.everything FROM messages.session_reach r)
             OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r));
    RETURN QUERY SELECT * FROM messages.ready_queues(coalesce(scan.queue_names, '{}'), scan.count_up_to);
END $$;
COMMENT ON FUNCTION messages.scan(text[], integer) IS
    'Ends what is due in these queues, looks at all of a queue if it is time for that, and returns what ready_queues() returns then: for whoever waits, because perhaps nobody else is there to do it. Unknown names are left out, and so is what this login may not observe. One call serves any number of waiting consumers. PQ004: a negative number.';
