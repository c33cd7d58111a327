CREATE OR REPLACE FUNCTION messages.resume_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.alter_queue(resume_queue.queue_name, paused => false);
    PERFORM messages.ring(q.queue_name, 1) FROM messages.queue q
      WHERE q.queue_name = resume_queue.queue_name COLLATE "default" AND q.notify <> 'off';
END $$;
COMMENT ON FUNCTION messages.resume_queue(text) IS 'Ends a pause, and rings for the consumers. PQ001: unknown queue; PQ016: as in pause_queue.';
