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
    behind   boolean;
    place    timestamptz;
BEGIN
    PERFORM messages.check_body(q.queue_name, replace_waiting.message, q.max_body_bytes) FROM messages.queue q     -- no trigger sees it
      WHERE q.queue_name = replace_waiting.queue_name COLLATE "default";
    SELECT m.visible_at, m.due_at, m.fair_key INTO was FROM messages.message_rows m
     WHERE m.id = replace_waiting.id AND m.queue_name = replace_waiting.queue_name COLLATE "default" AND m.lock_expires_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- What waits behind others of its group stays there, unless it is to wait for longer.
    behind := was.visible_at = 'infinity' AND replace_waiting.visible_at <= moment;
    place := CASE WHEN was.fair_key IS NULL THEN replace_waiting.visible_at ELSE least(was.due_at, was.visible_at, replace_waiting.visible_at) END;
    UPDATE messages.message_rows m
       SET message = replace_waiting.message, headers = replace_waiting.headers, reference = replace_waiting.reference,
           topic = replace_waiting.topic, expires_at = replace_waiting.expires_at,
           visible_at = CASE WHEN behind THEN m.visible_at ELSE replace_waiting.visible_at END,
           due_at = CASE WHEN behind THEN place ELSE nullif(place, replace_waiting.visible_at) END
     WHERE m.id = replace_waiting.id;
    IF NOT behind AND replace_waiting.visible_at <= moment AND place < replace_waiting.visible_at THEN
        -- Its place may lie before the mark of the lane, where no lease looks.
        PERFORM messages.come_back(replace_waiting.queue_name, ARRAY[replace_waiting.id]);
    ELSIF NOT behind AND replace_waiting.visible_at < was.visible_at THEN
        PERFORM messages.ring_for(replace_waiting.queue_name, replace_waiting.id);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT replace_waiting.queue_name, ends.at, ARRAY[replace_waiting.id]
      FROM (VALUES (CASE WHEN replace_waiting.visible_at > moment AND place < replace_waiting.visible_at THEN replace_waiting.visible_at END),
                   (replace_waiting.expires_at)) AS ends (at)
     WHERE ends.at IS NOT NULL;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.replace_waiting(text, bigint, jsonb, timestamptz, jsonb, text, text, timestamptz) IS
    'Puts another body, with its headers, reference, topic and times, in the place of one that nobody has leased; false, and nothing is changed, if it is leased or finished. It gets the place of its visible_at, and where keys take turns it keeps its own.';
