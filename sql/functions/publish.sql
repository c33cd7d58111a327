CREATE OR REPLACE FUNCTION messages.publish(
    queue_name text,
    message    jsonb,
    priority   integer  DEFAULT 0,
    delay      interval DEFAULT '0',
    expires_in interval DEFAULT NULL,
    headers    jsonb    DEFAULT NULL,
    reference  text     DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    new_id bigint;
BEGIN
    PERFORM messages.check_publish(publish.priority, publish.delay, publish.expires_in);
    INSERT INTO messages.message (queue_name, message, priority, created_at, visible_at, expires_at, headers, reference)
    VALUES (publish.queue_name, publish.message, publish.priority, moment, moment + coalesce(publish.delay, '0'),
            moment + publish.expires_in, publish.headers, publish.reference)
    RETURNING id INTO new_id;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish(text, jsonb, integer, interval, interval, jsonb, text) IS
    'Publishes one message in the caller''s transaction and returns its id. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large.';
