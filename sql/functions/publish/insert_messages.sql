CREATE OR REPLACE FUNCTION messages.insert_messages(
    queue_name   text,
    ids          bigint[],
    messages     jsonb,
    priority     integer,
    moment       timestamptz,
    due          timestamptz,
    expires_at   timestamptz,
    headers      jsonb,
    "references" text[],
    topics       text[],
    group_keys   text[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    turns_by text := messages.admit(insert_messages.queue_name, insert_messages.priority);
    keys     text[];
    places   timestamptz[];
    back_at  timestamptz;
BEGIN
    IF turns_by IS NOT NULL THEN
        keys := messages.fair_keys(turns_by, cardinality(ids), insert_messages.headers, insert_messages.topics, insert_messages.group_keys);
        places := messages.fair_places(insert_messages.queue_name, insert_messages.priority, keys);
        -- At the end of a delay a message comes back to its place.
        back_at := CASE WHEN due > moment THEN due + cardinality(ids) * interval '1 us' END;
    END IF;
    INSERT INTO messages.message_rows (id, queue_name, message, priority, created_at, visible_at, due_at, expires_at, headers, reference, topic,
                                       group_key, fair_key)
    SELECT ids[body.number], q.queue_name,
           CASE WHEN pg_column_size(body.value) <= least(1000, q.max_body_bytes)
                     AND octet_length(body.value::text) <= least(1000, q.max_body_bytes) THEN body.value
                ELSE messages.check_body(q.queue_name, body.value, q.max_body_bytes) END,
           insert_messages.priority, moment,
           -- What waits in its group gets a place when it enters its lane.
           CASE WHEN insert_messages.group_keys[body.number] IS NOT NULL THEN 'infinity'
                WHEN places IS NULL OR back_at IS NOT NULL THEN due + body.number * interval '1 us' ELSE places[body.number] END,
           CASE WHEN insert_messages.group_keys[body.number] IS NOT NULL THEN due + body.number * interval '1 us'
                WHEN back_at IS NOT NULL THEN places[body.number] END,
           insert_messages.expires_at, insert_messages.headers, insert_messages."references"[body.number], insert_messages.topics[body.number],
           insert_messages.group_keys[body.number], keys[body.number]
      FROM messages.queue q CROSS JOIN jsonb_array_elements(insert_messages.messages) WITH ORDINALITY AS body (value, number)
     WHERE q.queue_name = insert_messages.queue_name COLLATE "default";
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT insert_messages.queue_name, due_times.at, '{}'::bigint[], g.key
      FROM unnest(insert_messages.group_keys) AS g (key) CROSS JOIN (VALUES (moment), (due + cardinality(ids) * interval '1 us')) AS due_times (at)
     WHERE g.key IS NOT NULL AND (due_times.at = moment OR due > moment);
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT insert_messages.queue_name, ends.at, ids FROM (VALUES (back_at), (insert_messages.expires_at)) AS ends (at) WHERE ends.at IS NOT NULL;
    PERFORM messages.ring_for(insert_messages.queue_name, ids[1]);
END $$;
COMMENT ON FUNCTION messages.insert_messages(text, bigint[], jsonb, integer, timestamptz, timestamptz, timestamptz, jsonb, text[], text[], text[]) IS
    'Inserts messages that were checked, under these ids: the ready ones into their lane, those of groups to wait for a place; sets their timers, and rings once. PQ001: unknown queue; PQ005: body too large.';
