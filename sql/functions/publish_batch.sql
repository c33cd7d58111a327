CREATE OR REPLACE FUNCTION messages.publish_batch(
    queue_name   text,
    messages     jsonb,
    priority     integer  DEFAULT 0,
    delay        interval DEFAULT '0',
    expires_in   interval DEFAULT NULL,
    headers      jsonb    DEFAULT NULL,
    "references" text[]   DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_publish(publish_batch.priority, publish_batch.delay, publish_batch.expires_in);
    IF publish_batch.messages IS NULL OR jsonb_typeof(publish_batch.messages) <> 'array'
       OR jsonb_array_length(publish_batch.messages) = 0 THEN
        RAISE EXCEPTION 'the batch is empty or not a JSON array'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array with at least one body.';
    END IF;
    IF cardinality(publish_batch."references") <> jsonb_array_length(publish_batch.messages) THEN
        RAISE EXCEPTION 'the batch has % bodies and % references',
            jsonb_array_length(publish_batch.messages), cardinality(publish_batch."references")
            USING ERRCODE = 'PQ004', HINT = 'Give one reference for each body, or none at all.';
    END IF;
    RETURN QUERY
    INSERT INTO messages.message AS m (queue_name, message, priority, visible_at, expires_at, headers, reference)
    SELECT publish_batch.queue_name, body.value, publish_batch.priority,
           clock_timestamp() + coalesce(publish_batch.delay, '0'), clock_timestamp() + publish_batch.expires_in,
           publish_batch.headers, publish_batch."references"[body.ordinality]
      FROM jsonb_array_elements(publish_batch.messages) WITH ORDINALITY AS body
    RETURNING m.id;
END $$;
COMMENT ON FUNCTION messages.publish_batch(text, jsonb, integer, interval, interval, jsonb, text[]) IS
    'Publishes each element of a JSON array in one statement and returns the ids in order. All or none. Errors as publish.';
