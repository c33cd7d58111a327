-- Topics: publish to each queue that a topic reaches.
--
-- A topic is words with dots between them, such as orders.eu.created. A queue is bound to patterns, in which * stands for one word and
-- # for any number of words. publish_topic publishes a copy to each queue with a pattern that matches; route_topic only names them.
--
-- Tables: topic_binding.

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
COMMENT ON FUNCTION messages.publish_topic IS
    'Publishes one message to each queue that the topic reaches and returns the ids. PQ008: it reaches none. Other errors as in publish.'
    ' [for: publisher]';

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
COMMENT ON FUNCTION messages.route_topic IS
    'The queues that a topic reaches, without publishing anything. PQ004: bad topic.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.bind_topic(queue_name text, pattern text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    changed boolean;
BEGIN
    PERFORM messages.topic_regex(coalesce(bind_topic.pattern, '')), messages.check_queue(bind_topic.queue_name, 'consume');
    PERFORM FROM messages.queue q WHERE q.queue_name = bind_topic.queue_name COLLATE "default" FOR KEY SHARE;
    IF NOT FOUND THEN                      -- dropped by a session that this one waited for
        PERFORM messages.raise_unknown_queue(bind_topic.queue_name);
    END IF;
    INSERT INTO messages.topic_binding (queue_name, pattern) VALUES (bind_topic.queue_name, bind_topic.pattern)
    ON CONFLICT DO NOTHING;
    changed := FOUND;
    PERFORM messages.record_audit('bind_topic', bind_topic.queue_name, jsonb_build_object('pattern', bind_topic.pattern), NULL) WHERE changed;
    RETURN changed;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', bind_topic.queue_name));
END $$;
COMMENT ON FUNCTION messages.bind_topic IS
    'Lets a queue get a copy of what publish_topic publishes under a topic that the pattern matches; true if the binding is new. PQ001: unknown queue; PQ004: bad pattern; PQ016: another transaction is changing it for more than three seconds.'
    ' [for: admin]';

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
COMMENT ON FUNCTION messages.unbind_topic IS 'Removes a binding; true if there was one. PQ016: another transaction is changing it for more than three seconds.'
    ' [for: admin]';
