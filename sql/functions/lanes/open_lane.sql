CREATE OR REPLACE FUNCTION messages.open_lane(queue_name text, priority integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Whoever has the row is opening the lane; if that is rolled back, the next look opens it.
    UPDATE messages.lane l SET used = true
     WHERE l.ctid = (SELECT l.ctid FROM messages.lane l
                      WHERE l.queue_name = open_lane.queue_name COLLATE "default" AND l.priority = open_lane.priority AND NOT l.used
                        FOR NO KEY UPDATE SKIP LOCKED);
END $$;
COMMENT ON FUNCTION messages.open_lane(text, integer) IS 'Lets leases look at the lane of a priority that is used for the first time, unless another session is about to.';
