CREATE OR REPLACE FUNCTION messages.new_message() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    arrival record;
BEGIN
    FOR arrival IN
        SELECT a.*, q.max_body_bytes, q.notify, q.room, q.max_depth,
               q.queue_name IS NULL AS unknown, b.priority IS NULL AS new_band
          FROM (SELECT queue_name, priority, min(id) AS first_id, count(*) AS number,
                       max(pg_column_size(message)) AS largest, count(group_key) > 0 AS grouped
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
        IF arrival.max_depth IS NOT NULL THEN
            PERFORM messages.take_room(arrival.queue_name, arrival.number);
        END IF;
        IF arrival.grouped THEN
            PERFORM messages.line_up(member.ids, arrival.queue_name, member.group_keys, member.repeats)
               FROM (SELECT array_agg(id ORDER BY id) AS ids, array_agg(group_key ORDER BY id) AS group_keys,
                            array_agg(requeued_from ORDER BY id) AS repeats
                       FROM arrived
                      WHERE queue_name = arrival.queue_name AND priority = arrival.priority AND group_key IS NOT NULL) member;
        END IF;
        -- A full notification queue would make publishers fail at commit, so stop ringing long before.
        CONTINUE WHEN arrival.notify = 'off' OR messages.is_quiet();
        CONTINUE WHEN arrival.notify = 'gated'
            AND NOT pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || arrival.queue_name, 0));
        PERFORM pg_notify('new_message', arrival.first_id::text);
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.new_message() IS
    'Internal, trigger. Checks what a statement inserted, lines up the groups, and rings new_message once per queue and priority with the first id.';
