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
    moment  timestamptz := clock_timestamp();
    due     timestamptz;
    expires timestamptz;
    forget  timestamptz;
    item    record;
    own     integer;                       -- the last place at which this call publishes
    source  integer[];                     -- the places whose bodies they get
    new_ids bigint[];                      -- those of this call, of which the messages of new keys get theirs
    ids     bigint[];
BEGIN
    PERFORM messages.check_batch(publish_deduplicated.queue_name, publish_deduplicated.messages, publish_deduplicated."references",
                                 publish_deduplicated.topics, publish_deduplicated.group_keys, publish_deduplicated.dedup_keys);
    PERFORM messages.check_publish(publish_deduplicated.priority, publish_deduplicated.delay, publish_deduplicated.expires_in,
                                   publish_deduplicated.visible_at, publish_deduplicated.headers);
    PERFORM messages.check_duration('dedup_window', publish_deduplicated.dedup_window, '1 second', '366 days'),
            messages.check_choice('on_conflict', publish_deduplicated.on_conflict, '{skip,replace}', required => true);
    due := greatest(publish_deduplicated.visible_at, moment, moment + publish_deduplicated.delay);
    expires := moment + publish_deduplicated.expires_in;
    SELECT moment + coalesce(publish_deduplicated.dedup_window, q.dedup_window) INTO forget
      FROM messages.queue q WHERE q.queue_name = publish_deduplicated.queue_name COLLATE "default";
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(publish_deduplicated.queue_name);
    END IF;
    -- The ids follow the order of the bodies, because the order in a group follows the ids.
    new_ids := ARRAY(SELECT nextval('messages.message_id_seq') FROM unnest(publish_deduplicated.dedup_keys));
    ids := new_ids;
    -- Every session takes the keys in the same order, so that two batches cannot deadlock. Two transactions with several can.
    BEGIN
        FOR item IN
            SELECT keys.dedup_key, keys.place FROM unnest(publish_deduplicated.dedup_keys) WITH ORDINALITY AS keys (dedup_key, place)
             ORDER BY keys.dedup_key COLLATE "C", keys.place
        LOOP
            source[item.place] := item.place;
            CONTINUE WHEN item.dedup_key IS NULL;
            ids[item.place] := messages.remember_key(publish_deduplicated.queue_name, item.dedup_key, new_ids[item.place], moment, forget);
            IF publish_deduplicated.on_conflict = 'replace' AND ids[item.place] = new_ids[own] THEN
                source[own] := item.place;
            ELSIF publish_deduplicated.on_conflict = 'replace' AND ids[item.place] <> new_ids[item.place]
                  AND NOT messages.replace_waiting(
                      publish_deduplicated.queue_name, ids[item.place], publish_deduplicated.messages -> (item.place - 1)::integer, due,
                      publish_deduplicated.headers, publish_deduplicated."references"[item.place], publish_deduplicated.topics[item.place],
                      expires) THEN
                -- It is leased or finished: the key now stands for the new message, as if it had expired.
                ids[item.place] := messages.remember_key(publish_deduplicated.queue_name, item.dedup_key, new_ids[item.place], 'infinity', forget);
            END IF;
            own := CASE WHEN ids[item.place] = new_ids[item.place] THEN item.place ELSE own END;
        END LOOP;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('dedup_key %L', left(item.dedup_key, 100)), SQLSTATE);
    END;
    SELECT array_agg(n.id ORDER BY n.place) AS ids, jsonb_agg(publish_deduplicated.messages -> (n.source - 1) ORDER BY n.place) AS bodies,
           array_agg(publish_deduplicated."references"[n.source] ORDER BY n.place) AS "references",
           array_agg(publish_deduplicated.topics[n.source] ORDER BY n.place) AS topics,
           array_agg(publish_deduplicated.group_keys[n.place] ORDER BY n.place) AS group_keys
      INTO item FROM unnest(ids, new_ids, source) WITH ORDINALITY AS n (id, new_id, source, place) WHERE n.id = n.new_id;
    IF item.ids IS NOT NULL THEN
        PERFORM messages.insert_messages(publish_deduplicated.queue_name, item.ids, item.bodies, publish_deduplicated.priority, moment, due, expires,
                                         publish_deduplicated.headers, item."references", item.topics, item.group_keys);
    END IF;
    RETURN QUERY SELECT known.id, known.id <> known.new_id FROM unnest(ids, new_ids) AS known (id, new_id);
END $$;
COMMENT ON FUNCTION messages.publish_deduplicated(text, jsonb, text[], interval, text, integer, interval, interval, jsonb, text[], timestamptz, text[], text[]) IS
    'Publishes the bodies whose dedup_key is not remembered; a duplicate returns the id of the message that was published before. on_conflict => replace puts the new body in its place while that message waits; of a key that is given twice the last body counts, and the last of its places is the duplicate. Waits for the end of a transaction that publishes under one of the keys. PQ016: that one stayed open for more than three seconds, or waits for this one; other errors as in publish.';
