CREATE OR REPLACE FUNCTION messages.publish_batch(
    queue_name   text,
    messages     jsonb,
    priority     integer     DEFAULT 0,
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
    admitted  text;
    published integer;
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
    -- The short way, as in publish(): it does what the trigger would, and enters the messages of a group where they belong,
    -- ready or not, instead of updating them. Everything unusual goes the long way below.
    admitted := set_config('messages.admitted', pg_sequence_last_value('messages.admission')::text, true);
    RETURN QUERY
    WITH place AS MATERIALIZED (
        SELECT q.queue_name, p.priority, q.max_body_bytes,
               CASE WHEN publish_batch.group_keys IS NOT NULL
                    THEN messages.enter_groups(q.queue_name, ids, publish_batch.group_keys) END AS waits
          FROM messages.queue q
          JOIN messages.queue_priority p ON p.queue_name = q.queue_name AND p.priority = publish_batch.priority
         WHERE q.queue_name = publish_batch.queue_name COLLATE "default" AND q.max_depth IS NULL
           AND pg_column_size(publish_batch.messages #> '{}') <= q.max_body_bytes
           AND CASE WHEN q.notify <> 'off'
                     AND coalesce(pg_sequence_last_value('messages.rings_paused_until') < extract(epoch FROM moment) * 1000000, true)
                     AND (random() > 0.01 OR NOT messages.notify_queue_is_filling())
                     AND (q.notify = 'always'
                          OR pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || q.queue_name, 0)))
                    THEN pg_notify('new_message', ids[1]::text) IS NOT NULL ELSE true END)
    INSERT INTO messages.message AS m (id, queue_name, message, priority, created_at, visible_at, due_at, expires_at, headers,
                                       reference, topic, group_key)
        OVERRIDING SYSTEM VALUE
    SELECT ids[body.number], place.queue_name,
           CASE WHEN pg_column_size(body.value) <= 1000 THEN body.value
                ELSE messages.check_body(place.queue_name, body.value, place.max_body_bytes) END, place.priority, moment,
           CASE WHEN place.waits[body.number] THEN 'infinity' ELSE due + body.number * interval '1 us' END,
           CASE WHEN place.waits[body.number] THEN due + body.number * interval '1 us' END,
           moment + publish_batch.expires_in, publish_batch.headers, publish_batch."references"[body.number],
           publish_batch.topics[body.number], publish_batch.group_keys[body.number]
      FROM place CROSS JOIN jsonb_array_elements(publish_batch.messages) WITH ORDINALITY AS body (value, number)
    RETURNING m.id;
    GET DIAGNOSTICS published = ROW_COUNT;
    admitted := set_config('messages.admitted', '', true);
    IF published > 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    INSERT INTO messages.message AS m (id, queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic, group_key)
        OVERRIDING SYSTEM VALUE
    SELECT ids[body.number], publish_batch.queue_name, body.value, publish_batch.priority, moment,
           due + body.number * interval '1 us', moment + publish_batch.expires_in, publish_batch.headers,
           publish_batch."references"[body.number], publish_batch.topics[body.number], publish_batch.group_keys[body.number]
      FROM jsonb_array_elements(publish_batch.messages) WITH ORDINALITY AS body (value, number)
    RETURNING m.id;
END $$;
COMMENT ON FUNCTION messages.publish_batch(text, jsonb, integer, interval, interval, jsonb, text[], timestamptz, text[], text[], text[], interval, text) IS
    'Publishes each element of a JSON array in one statement and returns the ids in order, all or none; every other array has one element for each body, which may be NULL. Errors as in publish.';
