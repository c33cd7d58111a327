CREATE OR REPLACE FUNCTION messages.change_waiting(
    queue_name text,
    ids        bigint[],
    priority   integer,
    visible_at timestamptz,
    message    jsonb,
    replaces   boolean     DEFAULT false,
    headers    jsonb       DEFAULT NULL,
    reference  text        DEFAULT NULL,
    topic      text        DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    changed record;
BEGIN
    PERFORM messages.check_body(q.queue_name, change_waiting.message, q.max_body_bytes) FROM messages.queue q     -- no trigger sees it
      WHERE q.queue_name = change_waiting.queue_name COLLATE "default";
    WITH done AS (
        UPDATE messages.message_rows m
           SET message = coalesce(change_waiting.message, m.message), priority = coalesce(change_waiting.priority, m.priority),
               headers = CASE WHEN replaces THEN change_waiting.headers ELSE m.headers END,
               reference = CASE WHEN replaces THEN change_waiting.reference ELSE m.reference END,
               topic = CASE WHEN replaces THEN change_waiting.topic ELSE m.topic END,
               expires_at = CASE WHEN replaces THEN change_waiting.expires_at ELSE m.expires_at END,
               -- What waits behind others of its group stays there, unless it is to wait for longer.
               visible_at = CASE WHEN m.visible_at < 'infinity' OR change_waiting.visible_at > moment THEN coalesce(change_waiting.visible_at, m.visible_at)
                                 ELSE m.visible_at END,
               -- Its place, to which it comes back after the delay; NULL where visible_at is that place.
               due_at = CASE WHEN change_waiting.visible_at IS NULL THEN m.due_at
                             ELSE nullif(CASE WHEN replaces AND m.fair_key IS NULL THEN change_waiting.visible_at
                                              ELSE least(m.due_at, m.visible_at, change_waiting.visible_at) END,
                                         CASE WHEN m.visible_at < 'infinity' OR change_waiting.visible_at > moment THEN change_waiting.visible_at END) END
          FROM messages.message_rows before
         WHERE m.id = ANY (change_waiting.ids) AND m.queue_name = change_waiting.queue_name COLLATE "default" AND m.lock_expires_at IS NULL
           AND before.id = m.id
        RETURNING m.id, m.visible_at, m.due_at, m.visible_at < before.visible_at AS is_sooner)
    SELECT array_agg(d.id ORDER BY d.id) AS ids, bool_or(d.is_sooner) AS is_sooner,
           array_agg(d.id) FILTER (WHERE d.visible_at <= moment AND (d.due_at IS NOT NULL OR change_waiting.priority IS NOT NULL)) AS ready,
           array_agg(d.id) FILTER (WHERE d.visible_at > moment AND d.visible_at < 'infinity' AND d.due_at IS NOT NULL) AS delayed
      INTO changed FROM done d;
    -- Their places may lie before the mark of the lane, where no lease looks.
    PERFORM messages.come_back(change_waiting.queue_name, changed.ready) WHERE changed.ready IS NOT NULL;
    IF changed.is_sooner THEN
        PERFORM messages.ring_for(change_waiting.queue_name, changed.ids[1]);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT change_waiting.queue_name, t.at, t.ids
      FROM (VALUES (change_waiting.visible_at, changed.delayed), (change_waiting.expires_at, changed.ids)) AS t (at, ids)
     WHERE t.at IS NOT NULL AND t.ids IS NOT NULL;
    RETURN changed.ids;
END $$;
COMMENT ON FUNCTION messages.change_waiting(text, bigint[], integer, timestamptz, jsonb, boolean, jsonb, text, text, timestamptz) IS
    'Changes those of these messages that nobody has leased, and returns their ids, or NULL if there are none. Sets what is not NULL of priority, visible_at and message; where a message replaces another one, also its headers, reference, topic and expires_at. A message that is only changed keeps its place in the order; one that replaces another gets the place of its visible_at, unless keys take turns.';
