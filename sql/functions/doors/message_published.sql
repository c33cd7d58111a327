CREATE OR REPLACE FUNCTION messages.message_published() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    arrival record;
BEGIN
    PERFORM messages.check_times(a.created_at, a.visible_at), messages.check_headers(a.headers), messages.check_reference(a.reference),
            messages.check_body(a.queue_name, a.message, q.max_body_bytes)
       FROM arrived a LEFT JOIN messages.queue q ON q.queue_name = a.queue_name;
    FOR arrival IN
        SELECT a.queue_name, a.priority, min(a.id) AS id, count(*) AS number FROM arrived a GROUP BY a.queue_name, a.priority ORDER BY a.queue_name, a.priority
    LOOP
        PERFORM messages.admit(arrival.queue_name, arrival.priority, arrival.number, entered => true);
        PERFORM messages.ring_for(arrival.queue_name, arrival.id);
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT a.queue_name, a.expires_at, array_agg(a.id) FROM arrived a WHERE a.expires_at IS NOT NULL GROUP BY a.queue_name, a.expires_at;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_published() IS
    'Trigger of messages.message. Checks what plain SQL inserted as publish does, and rings new_message once per queue and priority with the first id.';
