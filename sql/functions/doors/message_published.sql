CREATE OR REPLACE FUNCTION messages.message_published() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    arrival  record;
    turns_by text;
    moment   timestamptz;
    ids      bigint[];
    keys     text[];
BEGIN
    IF EXISTS (SELECT FROM arrived a WHERE a.id NOT BETWEEN 1 AND coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)) THEN
        RAISE EXCEPTION 'an id was never given out' USING ERRCODE = 'check_violation', HINT = 'Leave the id to its default.';
    END IF;
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at], ARRAY[CASE WHEN a.group_key IS NULL THEN a.visible_at ELSE nullif(a.visible_at, 'infinity') END, a.lock_expires_at, a.expires_at, a.due_at]),
            messages.check_length('locked_by', a.locked_by, 0, 1024), messages.check_length('group_key', a.group_key, 1, 255), messages.check_headers(a.headers), messages.check_reference(a.reference),
            messages.check_body(a.queue_name, a.message, q.max_body_bytes)
       FROM arrived a LEFT JOIN messages.queue q ON q.queue_name = a.queue_name;
    FOR arrival IN
        SELECT a.queue_name, a.priority, min(a.id) AS id, array_agg(a.id) FILTER (WHERE a.group_key IS NOT NULL) AS groups
          FROM arrived a GROUP BY a.queue_name, a.priority ORDER BY a.queue_name, a.priority
    LOOP
        turns_by := messages.admit(arrival.queue_name, arrival.priority);
        PERFORM messages.ring_for(arrival.queue_name, arrival.id);
        IF turns_by IS NOT NULL THEN
            -- What is leased or has a key was restored, and keeps its place.
            SELECT array_agg(a.id ORDER BY a.visible_at, a.id),
                   array_agg((messages.fair_keys(turns_by, 1, a.headers, ARRAY[a.topic], ARRAY[a.group_key]))[1] ORDER BY a.visible_at, a.id)
              INTO ids, keys
              FROM arrived a
             WHERE a.queue_name = arrival.queue_name AND a.priority = arrival.priority
               AND a.lock_expires_at IS NULL AND a.due_at IS NULL AND a.fair_key IS NULL AND a.visible_at < 'infinity';
            moment := clock_timestamp();
            WITH placed AS (
                UPDATE messages.message_rows m
                   SET fair_key = f.key, visible_at = CASE WHEN m.visible_at > moment OR m.group_key IS NOT NULL THEN m.visible_at ELSE f.place END,
                       due_at = CASE WHEN m.visible_at > moment AND m.group_key IS NULL THEN f.place END
                  FROM unnest(ids, keys, messages.fair_places(arrival.queue_name, arrival.priority, keys)) AS f (id, key, place) WHERE m.id = f.id
                RETURNING m.id, m.visible_at, m.due_at)
            INSERT INTO messages.timer (queue_name, at, ids)
            SELECT arrival.queue_name, p.visible_at, array_agg(p.id) FROM placed p WHERE p.due_at IS NOT NULL GROUP BY p.visible_at;
        END IF;
        IF arrival.groups IS NOT NULL THEN
            PERFORM messages.join_groups(arrival.queue_name, arrival.groups);
        END IF;
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT a.queue_name, a.lock_expires_at, a.lock_token, array_agg(a.id) FROM arrived a WHERE a.lock_expires_at IS NOT NULL GROUP BY 1, 2, 3
    UNION ALL
    SELECT a.queue_name, a.expires_at, NULL, array_agg(a.id) FROM arrived a WHERE a.expires_at IS NOT NULL GROUP BY 1, 2;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_published() IS
    'Trigger of messages.message. Checks what plain SQL inserted as publish does, sets timers, gives the messages their turns where keys take turns, and rings new_message once per queue and priority with the first id.';
