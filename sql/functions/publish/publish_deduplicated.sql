CREATE OR REPLACE FUNCTION messages.publish_deduplicated(
    queue_name   text,
    messages     jsonb,
    dedup_keys   text[],
    dedup_window interval    DEFAULT NULL,
    on_conflict  text        DEFAULT 'skip',
    priority     integer     DEFAULT 4,
    delay        interval    DEFAULT NULL,
    expires_in   interval    DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    "references" text[]      DEFAULT NULL,
    visible_at   timestamptz DEFAULT NULL,
    topics       text[]      DEFAULT NULL,
    group_keys   text[]      DEFAULT NULL
) RETURNS TABLE (id bigint, duplicate boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment     timestamptz := clock_timestamp();
    due        timestamptz;
    expires    timestamptz;
    forget     timestamptz;
    limits     record;
    item       record;
    known      bigint;
    ids        bigint[];
    duplicates boolean[] := '{}';
    own        integer;                    -- the place in the arrays of what this call publishes under the key
    source     integer[] := '{}';          -- the place whose body it gets
BEGIN
    PERFORM messages.check_batch(publish_deduplicated.queue_name, publish_deduplicated.messages, publish_deduplicated."references",
                                 publish_deduplicated.topics, publish_deduplicated.group_keys, publish_deduplicated.dedup_keys);
    PERFORM messages.check_publish(publish_deduplicated.priority, publish_deduplicated.delay, publish_deduplicated.expires_in,
                                   publish_deduplicated.visible_at, publish_deduplicated.headers);
    PERFORM messages.check_duration('dedup_window', publish_deduplicated.dedup_window, '1 second', '366 days');
    IF publish_deduplicated.on_conflict IS NULL OR publish_deduplicated.on_conflict NOT IN ('skip', 'replace') THEN
        RAISE EXCEPTION 'on_conflict is %', coalesce(quote_literal(left(publish_deduplicated.on_conflict, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give skip or replace.';
    END IF;
    SELECT q.dedup_window, q.max_body_bytes INTO limits
      FROM messages.queue q WHERE q.queue_name = publish_deduplicated.queue_name COLLATE "default";
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(publish_deduplicated.queue_name);
    END IF;
    due := greatest(publish_deduplicated.visible_at, moment, moment + publish_deduplicated.delay);
    expires := moment + publish_deduplicated.expires_in;
    forget := moment + coalesce(publish_deduplicated.dedup_window, limits.dedup_window);
    IF publish_deduplicated.on_conflict = 'replace' THEN           -- no trigger sees the body of an UPDATE
        PERFORM messages.check_body(publish_deduplicated.queue_name, body.value, limits.max_body_bytes)
           FROM jsonb_array_elements(publish_deduplicated.messages) AS body (value);
    END IF;
    -- The ids follow the order of the bodies, because the order in a group follows the ids.
    ids := ARRAY(SELECT nextval('messages.message_id_seq') FROM generate_series(1, cardinality(publish_deduplicated.dedup_keys)));
    -- Every session takes the keys in the same order, so that two batches cannot deadlock. Two transactions with several can.
    BEGIN
        FOR item IN
            SELECT keys.dedup_key, keys.place FROM unnest(publish_deduplicated.dedup_keys) WITH ORDINALITY AS keys (dedup_key, place)
             ORDER BY keys.dedup_key COLLATE "C", keys.place
        LOOP
            duplicates[item.place] := false;
            source[item.place] := item.place;
            CONTINUE WHEN item.dedup_key IS NULL;
            known := messages.remember_key(publish_deduplicated.queue_name, item.dedup_key, ids[item.place], moment, forget);
            IF known = ids[item.place] THEN
                own := item.place;
                CONTINUE;
            ELSIF publish_deduplicated.on_conflict = 'replace' AND known = ids[own] THEN
                source[own] := item.place;
            ELSIF publish_deduplicated.on_conflict = 'replace'
                  AND messages.change_waiting(
                      publish_deduplicated.queue_name, ARRAY[known], NULL, due, publish_deduplicated.messages -> (item.place - 1)::integer, true,
                      publish_deduplicated.headers, publish_deduplicated."references"[item.place], publish_deduplicated.topics[item.place], expires) IS NULL THEN
                own := item.place;
                UPDATE messages.dedup d SET id = ids[item.place], expires_at = forget
                 WHERE d.queue_name = publish_deduplicated.queue_name COLLATE "default" AND d.dedup_key = item.dedup_key COLLATE "default";
                CONTINUE;
            END IF;
            ids[item.place] := known;
            duplicates[item.place] := true;
        END LOOP;
    EXCEPTION
        WHEN lock_not_available THEN
            PERFORM messages.raise_in_use(format('dedup_key %L', left(item.dedup_key, 100)));
        WHEN deadlock_detected THEN
            PERFORM messages.raise_deadlock(format('dedup_key %L', left(item.dedup_key, 100)));
    END;
    INSERT INTO messages.message (id, queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic, group_key)
    SELECT ids[body.place], publish_deduplicated.queue_name,
           CASE WHEN source[body.place] = body.place THEN body.value ELSE publish_deduplicated.messages -> (source[body.place] - 1) END,
           publish_deduplicated.priority, moment, due + body.place * interval '1 us', expires,
           publish_deduplicated.headers, publish_deduplicated."references"[source[body.place]],
           publish_deduplicated.topics[source[body.place]], publish_deduplicated.group_keys[body.place]
      FROM jsonb_array_elements(publish_deduplicated.messages) WITH ORDINALITY AS body (value, place)
     WHERE NOT duplicates[body.place];
    RETURN QUERY SELECT * FROM unnest(ids, duplicates);
END $$;
COMMENT ON FUNCTION messages.publish_deduplicated(text, jsonb, text[], interval, text, integer, interval, interval, jsonb, text[], timestamptz, text[], text[]) IS
    'Publishes the bodies whose dedup_key is not remembered; a duplicate returns the id of the message that was published before. on_conflict => replace puts the new body in its place while that message waits; of a key that is given twice the last body counts, and the last of its places is the duplicate. Waits for the end of a transaction that publishes under one of the keys. PQ016: that one stayed open for more than three seconds, or waits for this one; other errors as in publish.';
