CREATE OR REPLACE FUNCTION messages.replace_waiting(
    queue_name text,
    id         bigint,
    message    jsonb,
    visible_at timestamptz,
    headers    jsonb,
    reference  text,
    topic      text,
    expires_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    was      record;
    waits    boolean;
    own      timestamptz;                 -- its place in the order
BEGIN
    PERFORM messages.check_body(q.queue_name, replace_waiting.message, q.max_body_bytes) FROM messages.queue q     -- no trigger sees it
      WHERE q.queue_name = replace_waiting.queue_name COLLATE "default";
    SELECT m.visible_at, m.due_at, m.fair_key INTO was FROM messages.message_rows m
     WHERE m.id = replace_waiting.id AND m.queue_name = replace_waiting.queue_name COLLATE "default" AND m.lock_expires_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    waits := was.visible_at = 'infinity';                          -- in its group, where it stays
    own := CASE WHEN was.fair_key IS NULL OR waits THEN replace_waiting.visible_at ELSE least(was.due_at, was.visible_at, replace_waiting.visible_at) END;
    UPDATE messages.message_rows m
       SET message = replace_waiting.message, headers = replace_waiting.headers, reference = replace_waiting.reference,
           topic = replace_waiting.topic, expires_at = replace_waiting.expires_at,
           visible_at = CASE WHEN waits THEN m.visible_at ELSE replace_waiting.visible_at END,
           due_at = CASE WHEN waits THEN own ELSE nullif(own, replace_waiting.visible_at) END
     WHERE m.id = replace_waiting.id;
    IF waits THEN
        PERFORM messages.join_groups(replace_waiting.queue_name, ARRAY[replace_waiting.id]);
    ELSIF replace_waiting.visible_at <= moment AND own < replace_waiting.visible_at THEN
        -- Its place may lie before the mark of the lane, where no lease looks.
        PERFORM messages.enter(replace_waiting.queue_name, ARRAY[replace_waiting.id]);
    ELSIF replace_waiting.visible_at < was.visible_at THEN
        PERFORM messages.ring_for(replace_waiting.queue_name, replace_waiting.id);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT replace_waiting.queue_name, ends.at, ARRAY[replace_waiting.id]
      FROM (VALUES (CASE WHEN NOT waits AND replace_waiting.visible_at > moment AND own < replace_waiting.visible_at THEN replace_waiting.visible_at END),
                   (replace_waiting.expires_at)) AS ends (at)
     WHERE ends.at IS NOT NULL;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.replace_waiting(text, bigint, jsonb, timestamptz, jsonb, text, text, timestamptz) IS
    'Puts another body, with its headers, reference, topic and times, in the place of one that nobody has leased; false, and nothing is changed, if it is leased or finished. It gets the place of its visible_at, and where keys take turns it keeps its own.';
