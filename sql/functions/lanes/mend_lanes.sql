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
    INSERT INTO messages.lane (queue_name, priority, used)
    SELECT q.queue_name, lacking.priority, lacking.priority = 4 FROM messages.queue q CROSS JOIN generate_series(0, 9) AS lacking (priority)
     WHERE q.queue_name = mend_lanes.queue_name COLLATE "default"
       AND NOT EXISTS (SELECT FROM messages.lane l WHERE l.queue_name = q.queue_name AND l.priority = lacking.priority)
    ON CONFLICT DO NOTHING;
    UPDATE messages.lane l SET mark = CASE WHEN l.used THEN messages.create_mark() END
     WHERE l.queue_name = mend_lanes.queue_name COLLATE "default"
       AND (l.used OR l.mark IS NOT NULL) AND (SELECT c.oid FROM pg_class c WHERE c.oid = l.mark) IS NULL;
END $$;
COMMENT ON FUNCTION messages.mend_lanes(text) IS
    'Makes what is missing of the lanes of a queue: only this makes sequences, so that no publisher or consumer does.';
