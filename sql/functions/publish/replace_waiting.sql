CREATE OR REPLACE FUNCTION messages.replace_waiting(
    id bigint, message jsonb, headers jsonb, reference text, topic text, visible_at timestamptz, expires_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    replaced record;
    delayed  boolean := replace_waiting.visible_at > clock_timestamp();
BEGIN
    UPDATE messages.message_rows m
       SET message = replace_waiting.message, headers = replace_waiting.headers, reference = replace_waiting.reference,
           topic = replace_waiting.topic, expires_at = replace_waiting.expires_at,
           -- What waits behind others of its group stays there, and a key keeps its turn.
           visible_at = CASE WHEN m.visible_at = 'infinity' THEN m.visible_at
                             WHEN m.fair_key IS NOT NULL AND NOT delayed THEN coalesce(m.due_at, m.visible_at)
                             ELSE replace_waiting.visible_at END,
           due_at = CASE WHEN m.fair_key IS NOT NULL AND delayed = (m.visible_at < 'infinity') THEN coalesce(m.due_at, m.visible_at)
                         WHEN m.visible_at = 'infinity' THEN replace_waiting.visible_at END
      FROM messages.message_rows before
     WHERE m.id = replace_waiting.id AND m.lock_expires_at IS NULL AND before.id = m.id
    RETURNING m.queue_name, m.visible_at < before.visible_at AS is_sooner, m.fair_key IS NOT NULL AND m.visible_at = replace_waiting.visible_at AS is_delayed INTO replaced;
    IF replaced IS NULL THEN
        RETURN false;
    END IF;
    IF replaced.is_sooner THEN
        PERFORM messages.ring_for(replaced.queue_name, replace_waiting.id);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT replaced.queue_name, ends.at, ARRAY[replace_waiting.id]
      FROM (VALUES (replace_waiting.expires_at), (CASE WHEN replaced.is_delayed THEN replace_waiting.visible_at END)) AS ends (at) WHERE ends.at IS NOT NULL;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.replace_waiting(bigint, jsonb, jsonb, text, text, timestamptz, timestamptz) IS
    'Puts a new body and what belongs to it in the place of those of a message; false if it is leased or finished, and so too late.';
