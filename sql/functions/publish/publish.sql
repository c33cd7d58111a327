CREATE OR REPLACE FUNCTION messages.publish(
    queue_name   text,
    message      jsonb,
    priority     integer     DEFAULT 0,
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
    admitted text;
BEGIN
    -- One test for all that is unusual, because PL/pgSQL prepares each anew in each transaction.
    IF publish.queue_name IS NULL OR publish.message IS NULL OR publish.priority IS DISTINCT FROM 0
       OR num_nonnulls(publish.delay, publish.expires_in, publish.visible_at, publish.headers, publish.topic, publish.group_key,
                       publish.dedup_key, publish.dedup_window) > 0
       OR publish.on_conflict <> 'skip'
       OR octet_length(publish.reference) > 2600
       OR pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
          AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        IF publish.queue_name IS NULL OR publish.message IS NULL OR octet_length(publish.reference) > 2600 THEN
            PERFORM messages.check_given(publish.queue_name, publish.message), messages.check_reference(publish.reference);
        END IF;
        IF publish.dedup_key IS NOT NULL THEN
            RETURN (SELECT d.id FROM messages.publish_deduplicated(
                publish.queue_name, jsonb_build_array(publish.message), ARRAY[publish.dedup_key], publish.dedup_window,
                publish.on_conflict, publish.priority, publish.delay, publish.expires_in, publish.headers,
                ARRAY[publish.reference], publish.visible_at, ARRAY[publish.topic], ARRAY[publish.group_key]) d);
        END IF;
        IF publish.dedup_window IS NOT NULL OR publish.on_conflict <> 'skip' THEN
            PERFORM messages.check_no_dedup('dedup_key', publish.dedup_window, publish.on_conflict);
        END IF;
        IF pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
           AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
            PERFORM messages.check_access(publish.queue_name, 'publish');
        END IF;
        -- Calling another function costs a tenth of a publish, so call it only if there is something to check.
        IF publish.priority IS DISTINCT FROM 0 OR publish.delay IS NOT NULL OR publish.expires_in IS NOT NULL
           OR publish.visible_at IS NOT NULL OR publish.headers IS NOT NULL THEN
            PERFORM messages.check_publish(publish.priority, publish.delay, publish.expires_in, publish.visible_at, publish.headers);
        END IF;
        IF publish.topic IS NOT NULL OR publish.group_key IS NOT NULL THEN
            PERFORM messages.check_topic(publish.topic), messages.check_key('group_key', publish.group_key);
        END IF;
    END IF;
    -- The short way: one statement checks and does what the trigger would, because the trigger costs as much as all the rest.
    -- Everything unusual goes the long way below, and so does one publish in a hundred, to see how full the notification
    -- queue is.
    IF publish.group_key IS NULL THEN
        admitted := set_config('messages.admitted', pg_sequence_last_value('messages.admission')::text, true);
        INSERT INTO messages.message (id, queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic)
            OVERRIDING SYSTEM VALUE
        SELECT new.id, q.queue_name, publish.message, p.priority, moment,
               greatest(publish.visible_at, moment, moment + publish.delay), moment + publish.expires_in,
               publish.headers, publish.reference, publish.topic
          FROM messages.queue q
          JOIN messages.queue_priority p ON p.queue_name = q.queue_name AND p.priority = publish.priority
         CROSS JOIN LATERAL (SELECT nextval('messages.message_id_seq') AS id WHERE random() > 0.01) new
         WHERE q.queue_name = publish.queue_name COLLATE "default" AND q.max_depth IS NULL
           AND CASE WHEN pg_column_size(publish.message) <= 1000 AND pg_column_compression(publish.message) IS NULL
                    THEN pg_column_size(publish.message) ELSE messages.json_bytes(publish.message) END <= q.max_body_bytes
           AND coalesce(pg_sequence_last_value('messages.rings_paused_until') < extract(epoch FROM moment) * 1000000, true)
           AND CASE WHEN q.notify = 'always'
                      OR q.notify = 'gated' AND pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || q.queue_name, 0))
                    THEN pg_notify('new_message', new.id::text) IS NOT NULL ELSE true END
        RETURNING id INTO new_id;
        admitted := set_config('messages.admitted', '', true);
        IF new_id IS NOT NULL THEN
            RETURN new_id;
        END IF;
    END IF;
    INSERT INTO messages.message (queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic, group_key)
    VALUES (publish.queue_name, publish.message, publish.priority, moment,
            greatest(publish.visible_at, moment, moment + publish.delay), moment + publish.expires_in,
            publish.headers, publish.reference, publish.topic, publish.group_key)
    RETURNING id INTO new_id;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish(text, jsonb, integer, interval, interval, jsonb, text, timestamptz, text, text, text, interval, text) IS
    'Publishes one message in the caller''s transaction and returns its id; if its dedup_key is still remembered, the id of the message that was published under that key. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large; PQ007: queue full.';
