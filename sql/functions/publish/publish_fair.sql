CREATE OR REPLACE FUNCTION messages.publish_fair(
    queue_name   text,
    messages     jsonb,
    priority     integer,
    delay        interval,
    expires_in   interval,
    headers      jsonb,
    "references" text[],
    visible_at   timestamptz,
    topics       text[],
    group_keys   text[]
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    due    timestamptz := nullif(greatest(publish_fair.visible_at, moment, moment + publish_fair.delay), moment);
    number integer     := jsonb_array_length(publish_fair.messages);
    ids    bigint[]    := ARRAY(SELECT nextval('messages.message_id_seq') FROM generate_series(1, number));
    keys   text[]      := (SELECT messages.fair_keys(q.fair_by, number, publish_fair.headers, publish_fair.topics, publish_fair.group_keys)
                             FROM messages.queue q WHERE q.queue_name = publish_fair.queue_name COLLATE "default");
BEGIN
    RETURN QUERY
    INSERT INTO messages.message_rows AS m (id, queue_name, message, priority, created_at, visible_at, due_at, expires_at, headers, reference, topic,
                                            group_key, fair_key)
    SELECT new.id, q.queue_name,
           CASE WHEN pg_column_size(new.body) <= least(1000, q.max_body_bytes) AND octet_length(new.body::text) <= least(1000, q.max_body_bytes) THEN new.body
                ELSE messages.check_body(q.queue_name, new.body, q.max_body_bytes) END, publish_fair.priority, moment,
           -- At the end of a delay the message comes back to its place.
           coalesce(due, new.place), CASE WHEN due IS NOT NULL THEN new.place END, moment + publish_fair.expires_in, publish_fair.headers,
           publish_fair."references"[new.number], publish_fair.topics[new.number], publish_fair.group_keys[new.number], new.key
      FROM messages.queue q
     CROSS JOIN ROWS FROM (
        unnest(ids), jsonb_array_elements(publish_fair.messages), unnest(keys),
        unnest(messages.fair_places(publish_fair.queue_name, publish_fair.priority, keys))) WITH ORDINALITY AS new (id, body, key, place, number)
     WHERE q.queue_name = publish_fair.queue_name COLLATE "default"
    RETURNING m.id;
    PERFORM messages.ring_for(publish_fair.queue_name, ids[1]);
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT publish_fair.queue_name, ends.at, ids FROM (VALUES (due), (moment + publish_fair.expires_in)) AS ends (at) WHERE ends.at IS NOT NULL;
END $$;
COMMENT ON FUNCTION messages.publish_fair(text, jsonb, integer, interval, interval, jsonb, text[], timestamptz, text[], text[]) IS
    'Publishes, for publish and publish_batch, into a queue where keys take turns. PQ005: body too large.';
