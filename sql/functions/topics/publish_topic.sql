CREATE OR REPLACE FUNCTION messages.publish_topic(
    topic      text,
    message    jsonb,
    priority   integer     DEFAULT 4,
    delay      interval    DEFAULT NULL,
    expires_in interval    DEFAULT NULL,
    headers    jsonb       DEFAULT NULL,
    reference  text        DEFAULT NULL,
    visible_at timestamptz DEFAULT NULL,
    group_key  text        DEFAULT NULL,
    dedup_key  text        DEFAULT NULL
) RETURNS TABLE (queue_name text, id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r.queue_name, messages.publish(
               r.queue_name, publish_topic.message, publish_topic.priority, publish_topic.delay, publish_topic.expires_in,
               publish_topic.headers, publish_topic.reference, publish_topic.visible_at, publish_topic.topic,
               publish_topic.group_key, publish_topic.dedup_key)
      FROM messages.route_topic(publish_topic.topic) AS r (queue_name);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'topic % reaches no queue', quote_literal(publish_topic.topic) USING ERRCODE = 'PQ008',
            HINT = format('Bind one: SELECT messages.bind_topic(''queue'', %L)', publish_topic.topic);
    END IF;
END $$;
COMMENT ON FUNCTION messages.publish_topic(text, jsonb, integer, interval, interval, jsonb, text, timestamptz, text, text) IS
    'Publishes one message to each queue that the topic reaches and returns the ids. PQ008: it reaches none. Other errors as in publish.';
