CREATE OR REPLACE FUNCTION messages.message_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_times(a.created_at, a.visible_at), messages.admit(a.queue_name, a.priority, 0) FROM after a JOIN before b USING (id)
      WHERE (a.created_at, a.visible_at, a.queue_name, a.priority) IS DISTINCT FROM (b.created_at, b.visible_at, b.queue_name, b.priority);
    -- Whoever locks a message whose lease has ended makes the token of that lease worthless.
    UPDATE messages.message_rows m SET lock_token = NULL
      FROM after a JOIN before b USING (id)
     WHERE m.id = a.id AND a.lock_token = b.lock_token AND b.lock_expires_at <= moment AND a.lock_expires_at > b.lock_expires_at;
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
    'Trigger of messages.message. Where plain SQL locked messages or changed when they expire, sets the timer, and makes the token of an old lease worthless.';
