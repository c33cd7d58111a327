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
    policy record;
    new_id bigint;
    known  bigint;
    rung   text;
BEGIN
    -- One statement knows all that is usual; what it refuses goes to the function that knows the rest.
    SELECT q.queue_name, q.dedup_window, q.lock_key,
           CASE WHEN pg_sequence_last_value('messages.rings_paused_until') >= extract(epoch FROM moment) * 1000000 THEN 'off' ELSE q.notify END AS notify INTO policy
      FROM messages.queue q
     WHERE q.queue_name = publish.queue_name COLLATE "default" AND q.fair_by IS NULL AND publish.priority = 4
       AND num_nonnulls(publish.delay, publish.expires_in, publish.visible_at, publish.headers, publish.topic, publish.group_key, publish.dedup_window) = 0
       AND publish.on_conflict = 'skip' AND coalesce(length(publish.dedup_key) BETWEEN 1 AND 255, true) AND coalesce(octet_length(publish.reference) <= 2600, true)
       AND pg_column_size(publish.message) <= least(1000, q.max_body_bytes) AND pg_column_compression(publish.message) IS NULL
       AND octet_length(publish.message::text) <= least(1000, q.max_body_bytes)
       AND (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) IS NOT TRUE;
    IF NOT FOUND THEN
        IF publish.message IS NULL THEN
            RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
        END IF;
        IF publish.dedup_key IS NULL THEN
            PERFORM messages.check_no_dedup('dedup_key', publish.dedup_window, publish.on_conflict);
        END IF;
        RETURN messages.publish_batch(
            publish.queue_name, jsonb_build_array(publish.message), publish.priority, publish.delay, publish.expires_in, publish.headers,
            ARRAY[publish.reference], publish.visible_at, ARRAY[publish.topic], ARRAY[publish.group_key],
            CASE WHEN publish.dedup_key IS NOT NULL THEN ARRAY[publish.dedup_key] END, publish.dedup_window, publish.on_conflict);
    END IF;
    new_id := nextval('messages.message_id_seq');
    IF publish.dedup_key IS NOT NULL THEN
        BEGIN
            known := messages.remember_key(policy.queue_name, publish.dedup_key, new_id, moment, moment + policy.dedup_window);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM messages.raise_in_use(format('dedup_key %L', left(publish.dedup_key, 100)), SQLSTATE);
        END;
        IF known <> new_id THEN
            RETURN known;
        END IF;
        moment := clock_timestamp();       -- it may have waited for another publisher
    END IF;
    INSERT INTO messages.message_rows (id, queue_name, message, created_at, visible_at, reference)
    VALUES (new_id, policy.queue_name, publish.message, moment, moment, publish.reference);
    -- ring_for(), without the cost of its statement
    IF policy.notify = 'always' OR policy.notify = 'gated' AND pg_try_advisory_xact_lock(policy.lock_key, -1) THEN
        rung := pg_notify('new_message', new_id::text);
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish(text, jsonb, integer, interval, interval, jsonb, text, timestamptz, text, text, text, interval, text) IS
    'Publishes one message in the caller''s transaction and returns its id; if its dedup_key is still remembered, the id of the message that was published under that key. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large.';
