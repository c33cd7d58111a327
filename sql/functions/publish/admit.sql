CREATE OR REPLACE FUNCTION messages.admit(queue_name text, priority integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known record;
BEGIN
    SELECT q.fair_by, l.used INTO known
      FROM messages.queue q LEFT JOIN messages.lane l ON l.queue_name = q.queue_name AND l.priority = admit.priority
     WHERE q.queue_name = admit.queue_name COLLATE "default";
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(admit.queue_name);
    END IF;
    IF known.used IS NOT TRUE THEN
        PERFORM messages.check_publish(admit.priority, NULL, NULL, NULL, NULL);
        PERFORM messages.open_lane(admit.queue_name, admit.priority);
    END IF;
    RETURN known.fair_by;
END $$;
COMMENT ON FUNCTION messages.admit(text, integer) IS
    'Raises PQ001 or PQ004 unless messages may enter a queue at a priority, whose lane it opens if it is the first. Returns by what keys take turns; NULL if messages enter in the order in which they are published.';
