CREATE OR REPLACE FUNCTION messages.make_lane(queue_name text, priority integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Whoever has the row is making the lane; if that is rolled back, the next look makes it.
    PERFORM FROM messages.lane l
      WHERE l.queue_name = make_lane.queue_name COLLATE "default" AND l.priority = make_lane.priority AND l.mark IS NULL
        FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE messages.lane l SET mark = messages.create_mark()
         WHERE l.queue_name = make_lane.queue_name COLLATE "default" AND l.priority = make_lane.priority;
    END IF;
END $$;
COMMENT ON FUNCTION messages.make_lane(text, integer) IS 'Gives the lane of a priority that is used for the first time its mark, unless another session is about to.';
