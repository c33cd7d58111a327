CREATE OR REPLACE FUNCTION messages.mend_lanes(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Not by NOT EXISTS, which PostgreSQL may plan as a scan of all relations, for each queue.
    UPDATE messages.queue q SET look_due = messages.create_mark()
     WHERE q.queue_name = mend_lanes.queue_name COLLATE "default" AND (SELECT c.oid FROM pg_class c WHERE c.oid = q.look_due) IS NULL;
    UPDATE messages.queue q SET rate_mark = messages.create_mark()
     WHERE q.queue_name = mend_lanes.queue_name COLLATE "default" AND q.rate_limit IS NOT NULL
       AND (SELECT c.oid FROM pg_class c WHERE c.oid = q.rate_mark) IS NULL;
    UPDATE messages.lane l SET mark = NULL
     WHERE l.queue_name = mend_lanes.queue_name COLLATE "default"
       AND l.mark IS NOT NULL AND (SELECT c.oid FROM pg_class c WHERE c.oid = l.mark) IS NULL;
    INSERT INTO messages.lane (queue_name, priority)
    SELECT q.queue_name, lacking.priority FROM messages.queue q CROSS JOIN generate_series(0, 9) AS lacking (priority)
     WHERE q.queue_name = mend_lanes.queue_name COLLATE "default"
       AND NOT EXISTS (SELECT FROM messages.lane l WHERE l.queue_name = q.queue_name AND l.priority = lacking.priority)
    ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION messages.mend_lanes(text) IS
    'Makes what is missing of the lanes of a queue. A mark that is missing is made by the next look.';
