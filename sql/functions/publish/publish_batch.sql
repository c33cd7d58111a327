CREATE OR REPLACE FUNCTION messages.publish_batch(
    queue_name   text,
    messages     jsonb,
    priority     integer     DEFAULT 4,
    delay        interval    DEFAULT NULL,
    expires_in   interval    DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    "references" text[]      DEFAULT NULL,
    visible_at   timestamptz DEFAULT NULL,
    topics       text[]      DEFAULT NULL,
    group_keys   text[]      DEFAULT NULL,
    dedup_keys   text[]      DEFAULT NULL,
    dedup_window interval    DEFAULT NULL,
    on_conflict  text        DEFAULT 'skip'
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment    timestamptz := clock_timestamp();
    due       timestamptz;
    ids       bigint[];
    turns_by  text;
    keys      text[];
    places    timestamptz[];
    back_at   timestamptz;
BEGIN
    IF publish_batch.dedup_keys IS NOT NULL THEN
        RETURN QUERY SELECT d.id FROM messages.publish_deduplicated(
            publish_batch.queue_name, publish_batch.messages, publish_batch.dedup_keys, publish_batch.dedup_window,
            publish_batch.on_conflict, publish_batch.priority, publish_batch.delay, publish_batch.expires_in,
            publish_batch.headers, publish_batch."references", publish_batch.visible_at, publish_batch.topics,
            publish_batch.group_keys) d;
        RETURN;
    END IF;
    PERFORM messages.check_no_dedup('dedup_keys', publish_batch.dedup_window, publish_batch.on_conflict);
    PERFORM messages.check_batch(publish_batch.queue_name, publish_batch.messages, publish_batch."references",
                                 publish_batch.topics, publish_batch.group_keys, NULL);
    PERFORM messages.check_publish(publish_batch.priority, publish_batch.delay, publish_batch.expires_in,
                                   publish_batch.visible_at, publish_batch.headers);
    due := greatest(publish_batch.visible_at, moment, moment + publish_batch.delay);
    ids := ARRAY(SELECT nextval('messages.message_id_seq') FROM generate_series(1, jsonb_array_length(publish_batch.messages)));
    turns_by := messages.admit(publish_batch.queue_name, publish_batch.priority);
    IF turns_by IS NOT NULL THEN
        keys := messages.fair_keys(turns_by, cardinality(ids), publish_batch.headers, publish_batch.topics, publish_batch.group_keys);
        places := messages.fair_places(publish_batch.queue_name, publish_batch.priority, keys);
        -- At the end of a delay a message comes back to its place.
        back_at := CASE WHEN due > moment THEN due + cardinality(ids) * interval '1 us' END;
    END IF;
    RETURN QUERY
    INSERT INTO messages.message_rows AS m (id, queue_name, message, priority, created_at, visible_at, due_at, expires_at, headers, reference, topic,
                                            group_key, fair_key)
    SELECT ids[body.number], q.queue_name,
           CASE WHEN pg_column_size(body.value) <= least(1000, q.max_body_bytes)
                     AND octet_length(body.value::text) <= least(1000, q.max_body_bytes) THEN body.value
                ELSE messages.check_body(q.queue_name, body.value, q.max_body_bytes) END,
           publish_batch.priority, moment,
           CASE WHEN places IS NULL OR back_at IS NOT NULL THEN due + body.number * interval '1 us' ELSE places[body.number] END,
           CASE WHEN back_at IS NOT NULL THEN places[body.number] END, moment + publish_batch.expires_in, publish_batch.headers,
           publish_batch."references"[body.number], publish_batch.topics[body.number], publish_batch.group_keys[body.number], keys[body.number]
      FROM messages.queue q CROSS JOIN jsonb_array_elements(publish_batch.messages) WITH ORDINALITY AS body (value, number)
     WHERE q.queue_name = publish_batch.queue_name COLLATE "default"
    RETURNING m.id;
    PERFORM messages.ring_for(publish_batch.queue_name, ids[1]);
    IF back_at IS NOT NULL OR publish_batch.expires_in IS NOT NULL THEN
        INSERT INTO messages.timer (queue_name, at, ids)
        SELECT publish_batch.queue_name, ends.at, ids FROM (VALUES (back_at), (moment + publish_batch.expires_in)) AS ends (at)
         WHERE ends.at IS NOT NULL;
    END IF;
END $$;
COMMENT ON FUNCTION messages.publish_batch(text, jsonb, integer, interval, interval, jsonb, text[], timestamptz, text[], text[], text[], interval, text) IS
    'Publishes each element of a JSON array in one statement and returns the ids in order, all or none; every other array has one element for each body, which may be NULL. Errors as in publish.';
