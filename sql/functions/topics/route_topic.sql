CREATE OR REPLACE FUNCTION messages.route_topic(topic text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_topic(coalesce(route_topic.topic, ''));
    RETURN QUERY
    SELECT DISTINCT b.queue_name FROM messages.topic_binding b
     WHERE '.' || route_topic.topic ~ messages.topic_regex(b.pattern) ORDER BY b.queue_name;
END $$;
COMMENT ON FUNCTION messages.route_topic(text) IS
    'The queues that a topic reaches, without publishing anything. PQ004: bad topic.';
