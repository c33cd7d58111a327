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
    moment timestamptz := clock_timestamp();
    ids    bigint[];
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
    ids := ARRAY(SELECT nextval('messages.message_id_seq') FROM generate_series(1, jsonb_array_length(publish_batch.messages)));
    PERFORM messages.insert_messages(
        publish_batch.queue_name, ids, publish_batch.messages, publish_batch.priority, moment,
        greatest(publish_batch.visible_at, moment, moment + publish_batch.delay), moment + publish_batch.expires_in,
        publish_batch.headers, publish_batch."references", publish_batch.topics, publish_batch.group_keys);
    RETURN QUERY SELECT unnest(ids);
END $$;
COMMENT ON FUNCTION messages.publish_batch(text, jsonb, integer, interval, interval, jsonb, text[], timestamptz, text[], text[], text[], interval, text) IS
    'Publishes each element of a JSON array in one statement and returns the ids in order, all or none; every other array has one element for each body, which may be NULL. Errors as in publish.';
