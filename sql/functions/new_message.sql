CREATE OR REPLACE FUNCTION messages.new_message() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    arrival record;
BEGIN
    FOR arrival IN
        SELECT a.queue_name, a.priority, a.first_id, a.largest, q.max_body_bytes, q.notify,
               q.queue_name IS NULL AS unknown, b.priority IS NULL AS new_band
          FROM (SELECT queue_name, priority, min(id) AS first_id, max(pg_column_size(message)) AS largest
                  FROM arrived GROUP BY queue_name, priority) a
          LEFT JOIN messages.queue q ON q.queue_name = a.queue_name
          LEFT JOIN messages.band b ON b.queue_name = a.queue_name AND b.priority = a.priority
    LOOP
        IF arrival.unknown THEN
            PERFORM messages.raise_unknown_queue(arrival.queue_name);
        END IF;
        IF arrival.largest > arrival.max_body_bytes THEN
            RAISE EXCEPTION 'a body of % bytes is too large for queue %: it takes %',
                arrival.largest, quote_literal(arrival.queue_name), arrival.max_body_bytes
                USING ERRCODE = 'PQ005',
                      HINT = 'Keep large data elsewhere and publish where it is, or raise max_body_bytes with messages.alter_queue.';
        END IF;
        IF arrival.new_band THEN
            PERFORM messages.add_band(arrival.queue_name, arrival.priority);
        END IF;
        -- A full notification queue would make publishers fail at commit, so stop ringing long before.
        CONTINUE WHEN arrival.notify = 'off' OR pg_notification_queue_usage() > 0.5;
        CONTINUE WHEN arrival.notify = 'gated'
            AND NOT pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || arrival.queue_name, 0));
        PERFORM pg_notify('new_message', arrival.first_id::text);
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.new_message() IS
    'Internal, trigger. Checks what a statement inserted and rings new_message once per queue and priority with the first id.';
