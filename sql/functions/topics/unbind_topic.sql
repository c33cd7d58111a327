CREATE OR REPLACE FUNCTION messages.unbind_topic(queue_name text, pattern text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM messages.topic_binding b WHERE b.queue_name = unbind_topic.queue_name COLLATE "default" AND b.pattern = unbind_topic.pattern;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION messages.unbind_topic(text, text) IS 'Removes a binding; true if there was one.';
