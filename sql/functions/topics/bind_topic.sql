CREATE OR REPLACE FUNCTION messages.bind_topic(queue_name text, pattern text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    changed boolean;
BEGIN
    PERFORM messages.topic_regex(coalesce(bind_topic.pattern, '')), messages.check_queue(bind_topic.queue_name, 'consume');
    INSERT INTO messages.topic_binding (queue_name, pattern) VALUES (bind_topic.queue_name, bind_topic.pattern)
    ON CONFLICT DO NOTHING;
    changed := FOUND;
    PERFORM messages.record_audit('bind_topic', bind_topic.queue_name, jsonb_build_object('pattern', bind_topic.pattern), NULL) WHERE changed;
    RETURN changed;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', bind_topic.queue_name));
END $$;
COMMENT ON FUNCTION messages.bind_topic(text, text) IS
    'Lets a queue get a copy of what publish_topic publishes under a topic that the pattern matches; true if the binding is new. PQ001: unknown queue; PQ004: bad pattern; PQ016: another transaction is changing it for more than three seconds.';
