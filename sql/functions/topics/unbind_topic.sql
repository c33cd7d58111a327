CREATE OR REPLACE FUNCTION messages.unbind_topic(queue_name text, pattern text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    changed boolean;
BEGIN
    DELETE FROM messages.topic_binding b WHERE b.queue_name = unbind_topic.queue_name COLLATE "default" AND b.pattern = unbind_topic.pattern;
    changed := FOUND;
    PERFORM messages.record_audit('unbind_topic', unbind_topic.queue_name, jsonb_build_object('pattern', unbind_topic.pattern), NULL) WHERE changed;
    RETURN changed;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', unbind_topic.queue_name));
END $$;
COMMENT ON FUNCTION messages.unbind_topic(text, text) IS 'Removes a binding; true if there was one. PQ016: another transaction is changing it for more than three seconds.';
