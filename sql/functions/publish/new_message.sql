CREATE OR REPLACE FUNCTION messages.new_message() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    arrival record;
    policy  record;
    several refcursor;
    mixed   boolean;
    grouped boolean;
    waits   boolean[];
BEGIN
    -- Nearly every statement inserts into one queue with one priority: that costs half of what grouping costs.
    SELECT min(a.queue_name) AS queue_name, min(a.priority) AS priority, min(a.id) AS first_id, count(*) AS number,
           max(pg_column_size(CASE WHEN pg_column_compression(a.message) IS NULL THEN a.message ELSE a.message #> '{}' END)) AS largest, max(pg_column_size(a.headers #> '{}')) AS headers, max(a.queue_name) AS last_queue, max(a.priority) AS last_priority,
           count(a.group_key) AS grouped
      INTO arrival FROM arrived a;
    mixed := arrival.queue_name <> arrival.last_queue OR arrival.priority <> arrival.last_priority;
    grouped := arrival.grouped > 0;
    IF arrival.headers > 1000 THEN
        PERFORM messages.check_headers(a.headers) FROM arrived a;
    END IF;
    IF mixed THEN
        OPEN several FOR
            SELECT a.queue_name, a.priority, min(a.id) AS first_id, count(*) AS number, max(pg_column_size(CASE WHEN pg_column_compression(a.message) IS NULL THEN a.message ELSE a.message #> '{}' END)) AS largest
              FROM arrived a GROUP BY a.queue_name, a.priority ORDER BY a.queue_name, a.priority;
    END IF;
    LOOP
        IF mixed THEN
            FETCH several INTO arrival;
        END IF;
        EXIT WHEN arrival.first_id IS NULL;
        SELECT q.max_body_bytes, q.notify, q.max_depth, p.priority IS NULL AS new_priority INTO policy
          FROM messages.queue q LEFT JOIN messages.queue_priority p ON p.queue_name = q.queue_name AND p.priority = arrival.priority
         WHERE q.queue_name = arrival.queue_name;
        IF NOT FOUND THEN
            PERFORM messages.raise_unknown_queue(arrival.queue_name);
        END IF;
        IF arrival.largest > least(policy.max_body_bytes, 1000) THEN
            PERFORM messages.check_body(a.queue_name, a.message, policy.max_body_bytes) FROM arrived a
             WHERE a.queue_name = arrival.queue_name AND a.priority = arrival.priority;
        END IF;
        IF policy.new_priority THEN
            PERFORM messages.check_publish(arrival.priority, NULL, NULL, NULL, NULL);
            PERFORM messages.create_priority_sequences(arrival.queue_name, arrival.priority);
        END IF;
        IF policy.max_depth IS NOT NULL THEN
            PERFORM messages.check_max_depth(arrival.queue_name, arrival.number);
        END IF;
        -- A full notification queue would make publishers fail at commit, so stop ringing long before. Asking how full it is
        -- takes two locks of the whole server, so ask only now and then.
        IF policy.notify <> 'off'
           AND coalesce(pg_sequence_last_value('messages.rings_paused_until') < extract(epoch FROM clock_timestamp()) * 1000000, true)
           AND (random() > 0.01 OR NOT messages.notify_queue_is_filling())
           AND (policy.notify = 'always'
                OR pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || arrival.queue_name, 0))) THEN
            PERFORM pg_notify('new_message', arrival.first_id::text);
        END IF;
        EXIT WHEN NOT mixed;
    END LOOP;
    IF mixed THEN
        CLOSE several;
    END IF;
    IF grouped THEN
        FOR arrival IN
            SELECT g.queue_name, array_agg(g.id) AS ids, array_agg(g.group_key) AS group_keys, array_agg(g.requeued_from) AS requeued_from
              FROM (SELECT a.* FROM arrived a WHERE a.group_key IS NOT NULL ORDER BY a.queue_name, a.id) g
             GROUP BY g.queue_name ORDER BY g.queue_name
        LOOP
            waits := messages.enter_groups(arrival.queue_name, arrival.ids, arrival.group_keys, arrival.requeued_from);
            UPDATE messages.message m SET due_at = m.visible_at, visible_at = 'infinity'
             WHERE m.id = ANY (ARRAY(SELECT w.id FROM unnest(arrival.ids, waits) AS w (id, waits) WHERE w.waits));
        END LOOP;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.new_message() IS
    'Trigger. Checks what a statement inserted, queues it up in the groups, and rings new_message once per queue and priority with the first id.';
