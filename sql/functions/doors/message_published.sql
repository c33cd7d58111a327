CREATE OR REPLACE FUNCTION messages.message_published() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    arrival record;
BEGIN
    IF EXISTS (SELECT FROM arrived a WHERE a.id NOT BETWEEN 1 AND coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)) THEN
        RAISE EXCEPTION 'an id was never given out' USING ERRCODE = 'check_violation', HINT = 'Leave the id to its default.';
    END IF;
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at], ARRAY[nullif(a.visible_at, 'infinity'), a.lock_expires_at, a.expires_at, a.due_at]),
            messages.check_label('locked_by', a.locked_by, 1024), messages.check_headers(a.headers), messages.check_reference(a.reference),
            messages.check_body(a.queue_name, a.message, q.max_body_bytes)
       FROM arrived a LEFT JOIN messages.queue q ON q.queue_name = a.queue_name;
    FOR arrival IN
        SELECT a.queue_name, a.priority, min(a.id) AS id, count(*) AS number FROM arrived a GROUP BY a.queue_name, a.priority ORDER BY a.queue_name, a.priority
    LOOP
        PERFORM messages.admit(arrival.queue_name, arrival.priority, arrival.number, entered => true);
        PERFORM messages.ring_for(arrival.queue_name, arrival.id);
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT a.queue_name, a.lock_expires_at, a.lock_token, array_agg(a.id) FROM arrived a WHERE a.lock_expires_at IS NOT NULL GROUP BY 1, 2, 3
    UNION ALL
    SELECT a.queue_name, a.expires_at, NULL, array_agg(a.id) FROM arrived a WHERE a.expires_at IS NOT NULL GROUP BY 1, 2;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_published() IS
    'Trigger of messages.message. Checks what plain SQL inserted as publish does, sets timers, and rings new_message once per queue and priority with the first id.';
