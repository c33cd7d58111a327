CREATE OR REPLACE FUNCTION messages.publish(
    queue_name   text,
    message      jsonb,
    priority     integer     DEFAULT 4,
    delay        interval    DEFAULT NULL,
    expires_in   interval    DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    reference    text        DEFAULT NULL,
    visible_at   timestamptz DEFAULT NULL,
    topic        text        DEFAULT NULL,
    group_key    text        DEFAULT NULL,
    dedup_key    text        DEFAULT NULL,
    dedup_window interval    DEFAULT NULL,
    on_conflict  text        DEFAULT 'skip'
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    new_id bigint;
    admitted boolean := false;
BEGIN
    -- One test for all that is unusual, because PL/pgSQL prepares each anew in each transaction.
    IF publish.queue_name IS NULL OR publish.message IS NULL OR publish.priority IS DISTINCT FROM 4
       OR num_nonnulls(publish.delay, publish.expires_in, publish.visible_at, publish.headers, publish.topic, publish.group_key,
                       publish.dedup_key, publish.dedup_window) > 0
       OR publish.on_conflict <> 'skip'
       OR octet_length(publish.reference) > 2600
       OR pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
          AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        IF publish.message IS NULL THEN
            RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
        END IF;
        PERFORM messages.check_reference(publish.reference);
        IF publish.dedup_key IS NOT NULL THEN
            RETURN (SELECT d.id FROM messages.publish_deduplicated(
                publish.queue_name, jsonb_build_array(publish.message), ARRAY[publish.dedup_key], publish.dedup_window,
                publish.on_conflict, publish.priority, publish.delay, publish.expires_in, publish.headers,
                ARRAY[publish.reference], publish.visible_at, ARRAY[publish.topic], ARRAY[publish.group_key]) d);
        END IF;
        PERFORM messages.check_no_dedup('dedup_key', publish.dedup_window, publish.on_conflict),
                messages.check_access(publish.queue_name, 'publish'),
                messages.check_publish(publish.priority, publish.delay, publish.expires_in, publish.visible_at, publish.headers),
                messages.check_topic(publish.topic), messages.check_length('group_key', publish.group_key, 1, 255);
    END IF;
    LOOP
        -- One statement: each further one, and each call, would cost a tenth of a publish.
        INSERT INTO messages.message_rows (id, queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic, group_key)
        SELECT new.id, q.queue_name,
               CASE WHEN pg_column_size(publish.message) <= least(1000, q.max_body_bytes) AND pg_column_compression(publish.message) IS NULL
                         AND octet_length(publish.message::text) <= least(1000, q.max_body_bytes)
                    THEN publish.message ELSE messages.check_body(q.queue_name, publish.message, q.max_body_bytes) END,
               publish.priority, moment, greatest(publish.visible_at, moment, moment + publish.delay), moment + publish.expires_in,
               publish.headers, publish.reference, publish.topic, publish.group_key
          FROM messages.queue q LEFT JOIN messages.lane l ON l.queue_name = q.queue_name AND l.priority = publish.priority
         CROSS JOIN LATERAL (SELECT nextval('messages.message_id_seq') AS id) new
         WHERE q.queue_name = publish.queue_name COLLATE "default" AND (admitted OR q.fair_by IS NULL AND l.mark IS NOT NULL)
           AND CASE WHEN (q.notify = 'always' OR q.notify = 'gated' AND pg_try_advisory_xact_lock(q.lock_key, -1))
                         AND coalesce(pg_sequence_last_value('messages.rings_paused_until') < extract(epoch FROM moment) * 1000000, true)
                    THEN pg_notify('new_message', new.id::text) IS NOT NULL ELSE true END
        RETURNING id INTO new_id;
        EXIT WHEN new_id IS NOT NULL;
        admitted := messages.admit(publish.queue_name, publish.priority) IS NULL;
        IF NOT admitted THEN               -- keys take turns
            RETURN messages.publish_batch(
                publish.queue_name, jsonb_build_array(publish.message), publish.priority, publish.delay, publish.expires_in, publish.headers,
                ARRAY[publish.reference], publish.visible_at, ARRAY[publish.topic], ARRAY[publish.group_key]);
        END IF;
    END LOOP;
    IF publish.expires_in IS NOT NULL THEN
        INSERT INTO messages.timer (queue_name, at, ids) VALUES (publish.queue_name, moment + publish.expires_in, ARRAY[new_id]);
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish(text, jsonb, integer, interval, interval, jsonb, text, timestamptz, text, text, text, interval, text) IS
    'Publishes one message in the caller''s transaction and returns its id; if its dedup_key is still remembered, the id of the message that was published under that key. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large.';
