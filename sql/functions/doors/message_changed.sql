CREATE OR REPLACE FUNCTION messages.message_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    moved  record;
BEGIN
    IF EXISTS (SELECT a.id FROM after a EXCEPT SELECT b.id FROM before b) THEN
        RAISE EXCEPTION 'the id of a message is changed' USING ERRCODE = 'check_violation', HINT = 'It is the id forever. Publish another message.';
    END IF;
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at], ARRAY[CASE WHEN a.group_key IS NULL THEN a.visible_at ELSE nullif(a.visible_at, 'infinity') END, a.lock_expires_at, a.expires_at, a.due_at]),
            messages.check_length('locked_by', a.locked_by, 0, 1024), messages.check_length('group_key', a.group_key, 1, 255)
       FROM after a;
    PERFORM messages.check_headers(a.headers), messages.check_reference(a.reference), messages.admit(a.queue_name, a.priority),
            messages.check_body(a.queue_name, a.message, q.max_body_bytes)
       FROM after a JOIN before b USING (id) LEFT JOIN messages.queue q ON q.queue_name = a.queue_name
      WHERE (a.headers, a.reference, a.queue_name, a.priority, a.message) IS DISTINCT FROM (b.headers, b.reference, b.queue_name, b.priority, b.message);
    -- Whoever locks a message whose lease has ended makes the token of that lease worthless.
    UPDATE messages.message_rows m SET lock_token = NULL
      FROM after a JOIN before b USING (id)
     WHERE m.id = a.id AND a.lock_token = b.lock_token AND b.lock_expires_at <= moment AND a.lock_expires_at > b.lock_expires_at;
    -- What got another group, or a new time while it waits in one, joins it again; and the group that it left may have room.
    FOR moved IN
        SELECT a.queue_name, array_agg(a.id) AS ids FROM after a JOIN before b USING (id)
         WHERE a.group_key IS NOT NULL AND (a.queue_name, a.group_key, a.visible_at, a.place) IS DISTINCT FROM (b.queue_name, b.group_key, b.visible_at, b.place)
         GROUP BY a.queue_name
    LOOP
        PERFORM messages.join_groups(moved.queue_name, moved.ids);
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT b.queue_name, moment, '{}'::bigint[], b.group_key FROM after a JOIN before b USING (id)
     WHERE b.group_key IS NOT NULL AND (a.queue_name, a.group_key) IS DISTINCT FROM (b.queue_name, b.group_key);
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT m.queue_name, m.lock_expires_at, m.lock_token, array_agg(m.id)
      FROM after a JOIN before b USING (id) JOIN messages.message_rows m ON m.id = a.id
     WHERE m.lock_expires_at IS NOT NULL AND a.lock_expires_at IS DISTINCT FROM b.lock_expires_at
     GROUP BY m.queue_name, m.lock_expires_at, m.lock_token
    UNION ALL
    SELECT a.queue_name, a.expires_at, NULL, array_agg(a.id) FROM after a JOIN before b USING (id)
     WHERE a.expires_at IS NOT NULL AND a.expires_at IS DISTINCT FROM b.expires_at GROUP BY a.queue_name, a.expires_at;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_changed() IS
    'Trigger of messages.message. Checks what plain SQL changed as what it inserts. Where it locked messages or changed when they expire, sets the timer, and makes the token of an old lease worthless.';
