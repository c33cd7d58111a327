-- Publish: put messages in queues, in the transaction of the caller.
--
-- publish does the usual case in one statement, and calls publish_batch for any other. publish_batch checks its arguments; with
-- dedup keys it calls publish_deduplicated, which remembers the keys first. Both insert with insert_messages.
--
-- A publisher waits for nobody, unless it gives a dedup key: the second of two transactions with the same key waits for the first.
--
-- Tables: dedup.

CREATE OR REPLACE FUNCTION messages.publish(
    queue_name   text,
    message      jsonb,
    priority     integer     DEFAULT 4,
    delay        interval    DEFAULT NULL,
    expires_in   interval    DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    reference    text        DEFAULT NULL,
    visible_at   timestamptz DEFAULT NULL,
    topic        text        DEFAULT NULL,
    group_key    text        DEFAULT NULL,
    dedup_key    text        DEFAULT NULL,
    dedup_window interval    DEFAULT NULL,
    on_conflict  text        DEFAULT 'skip'
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    policy   record;
    new_id   bigint;
    known    bigint;
    notified text;
BEGIN
    LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;      -- before the queue is read, or drop_queue could delete it meanwhile
    -- One statement covers the usual case; publish_batch() takes what the statement refuses.
    SELECT q.queue_name, q.dedup_window, q.notify INTO policy
      FROM messages.queue q
     WHERE q.queue_name = publish.queue_name COLLATE "default" AND q.fair_by IS NULL AND publish.priority = 4
       AND num_nonnulls(publish.delay, publish.expires_in, publish.visible_at, publish.headers, publish.topic, publish.group_key, publish.dedup_window) = 0
       AND publish.on_conflict = 'skip' AND coalesce(length(publish.dedup_key) BETWEEN 1 AND 255, true) AND coalesce(octet_length(publish.reference) <= 2600, true)
       AND pg_column_size(publish.message) <= least(1000, q.max_body_bytes) AND pg_column_compression(publish.message) IS NULL
       AND octet_length(publish.message::text) <= least(1000, q.max_body_bytes)
       AND (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) IS NOT TRUE;
    IF NOT FOUND THEN
        IF publish.message IS NULL THEN
            RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
        END IF;
        IF publish.dedup_key IS NULL THEN
            PERFORM messages.check_no_dedup('dedup_key', publish.dedup_window, publish.on_conflict);
        END IF;
        RETURN messages.publish_batch(
            publish.queue_name, jsonb_build_array(publish.message), publish.priority, publish.delay, publish.expires_in, publish.headers,
            ARRAY[publish.reference], publish.visible_at, ARRAY[publish.topic], ARRAY[publish.group_key],
            CASE WHEN publish.dedup_key IS NOT NULL THEN ARRAY[publish.dedup_key] END, publish.dedup_window, publish.on_conflict);
    END IF;
    new_id := nextval('messages.message_id_seq');
    IF publish.dedup_key IS NOT NULL THEN
        BEGIN
            known := messages.remember_key(policy.queue_name, publish.dedup_key, new_id, moment, moment + policy.dedup_window);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM messages.raise_in_use(format('dedup_key %L', left(publish.dedup_key, 100)), SQLSTATE);
        END;
        IF known <> new_id THEN
            RETURN known;
        END IF;
        moment := clock_timestamp();       -- this call may have waited for another publisher
    END IF;
    INSERT INTO messages.message_rows (id, queue_name, message, created_at, visible_at, reference)
    VALUES (new_id, policy.queue_name, publish.message, moment, moment, publish.reference);
    -- Mostly without the cost of notify_for()
    IF policy.notify = 'gated' OR pg_sequence_last_value('messages.notifications_paused_until') > extract(epoch FROM moment) * 1000000 THEN
        PERFORM messages.notify_for(policy.queue_name, new_id);
    ELSIF policy.notify = 'always' THEN
        notified := pg_notify('new_message', new_id::text);
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish IS
    'Publishes one message in the caller''s transaction and returns its id; if its dedup_key is still remembered, the id of the message that was published under that key. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.publish_batch(
    queue_name   text,
    messages     jsonb,
    priority     integer     DEFAULT 4,
    delay        interval    DEFAULT NULL,
    expires_in   interval    DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    "references" text[]      DEFAULT NULL,
    visible_at   timestamptz DEFAULT NULL,
    topics       text[]      DEFAULT NULL,
    group_keys   text[]      DEFAULT NULL,
    dedup_keys   text[]      DEFAULT NULL,
    dedup_window interval    DEFAULT NULL,
    on_conflict  text        DEFAULT 'skip'
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    ids    bigint[];
BEGIN
    IF publish_batch.dedup_keys IS NOT NULL THEN
        RETURN QUERY SELECT d.id FROM messages.publish_deduplicated(
            publish_batch.queue_name, publish_batch.messages, publish_batch.dedup_keys, publish_batch.dedup_window,
            publish_batch.on_conflict, publish_batch.priority, publish_batch.delay, publish_batch.expires_in,
            publish_batch.headers, publish_batch."references", publish_batch.visible_at, publish_batch.topics,
            publish_batch.group_keys) d;
        RETURN;
    END IF;
    PERFORM messages.check_no_dedup('dedup_keys', publish_batch.dedup_window, publish_batch.on_conflict);
    PERFORM messages.check_batch(publish_batch.queue_name, publish_batch.messages, publish_batch."references",
                                 publish_batch.topics, publish_batch.group_keys, NULL);
    PERFORM messages.check_publish(publish_batch.priority, publish_batch.delay, publish_batch.expires_in,
                                   publish_batch.visible_at, publish_batch.headers);
    ids := ARRAY(SELECT nextval('messages.message_id_seq') FROM generate_series(1, jsonb_array_length(publish_batch.messages)));
    PERFORM messages.insert_messages(
        publish_batch.queue_name, ids, publish_batch.messages, publish_batch.priority, moment,
        greatest(publish_batch.visible_at, moment, moment + publish_batch.delay), moment + publish_batch.expires_in,
        publish_batch.headers, publish_batch."references", publish_batch.topics, publish_batch.group_keys);
    RETURN QUERY SELECT unnest(ids);
END $$;
COMMENT ON FUNCTION messages.publish_batch IS
    'Publishes each element of a JSON array in one statement and returns the ids in order, all or none; every other array has one element for each body, which may be NULL. Errors as in publish.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.check_batch(
    queue_name text, messages jsonb, "references" text[], topics text[], group_keys text[], dedup_keys text[]
) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    many   integer;
    part   text;
    number integer;
    plain  boolean;
BEGIN
    IF check_batch.queue_name IS NULL THEN
        PERFORM messages.raise_unknown_queue(NULL);
    END IF;
    -- session_is_limited(), without the cost of a call
    IF pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        PERFORM messages.check_access(check_batch.queue_name, 'publish');
    END IF;
    IF jsonb_typeof(check_batch.messages) = 'array' THEN
        many := jsonb_array_length(check_batch.messages);
    END IF;
    IF coalesce(many, 0) = 0 THEN
        RAISE EXCEPTION 'the batch is empty or not a JSON array'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array with at least one body.';
    END IF;
    FOR part, number, plain IN
        SELECT arrays.part, cardinality(value), (array_ndims(value), array_lower(value, 1)) = (1, 1)
          FROM (VALUES ('references', check_batch."references"), ('topics', check_batch.topics),
                       ('group_keys', check_batch.group_keys), ('dedup_keys', check_batch.dedup_keys)) AS arrays (part, value)
    LOOP
        IF NOT plain THEN
            RAISE EXCEPTION '% are not a list', part
                USING ERRCODE = 'PQ004', HINT = 'Give an array of one dimension, which begins at 1.';
        ELSIF number <> many THEN
            RAISE EXCEPTION 'number of bodies: %; number of %: %', many, part, number
                USING ERRCODE = 'PQ004', HINT = format('Give as many %s as bodies, or none at all.', part);
        END IF;
    END LOOP;
    PERFORM messages.check_reference(reference) FROM unnest(check_batch."references") AS reference;
    PERFORM messages.check_topic(topic) FROM unnest(check_batch.topics) AS topic;
    PERFORM messages.check_length('group_key', key, 1, 255) FROM unnest(check_batch.group_keys) AS key WHERE length(key) NOT BETWEEN 1 AND 255;
    PERFORM messages.check_length('dedup_key', key, 1, 255) FROM unnest(check_batch.dedup_keys) AS key WHERE length(key) NOT BETWEEN 1 AND 255;
END $$;
COMMENT ON FUNCTION messages.check_batch IS
    'Raises PQ004 for a batch that cannot be published.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_publish(
    priority integer, delay interval, expires_in interval, visible_at timestamptz, headers jsonb
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority is %', coalesce(priority::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a whole number from 0 to 9; higher is leased first, and 4 is the default.';
    END IF;
    PERFORM messages.check_duration('delay', delay, '0', '366 days');
    PERFORM messages.check_duration('expires_in', expires_in, '1 millisecond', '3660 days');
    IF visible_at IS NOT NULL AND delay > '0' THEN
        RAISE EXCEPTION 'both delay and visible_at are given' USING ERRCODE = 'PQ004', HINT = 'Give one of them.';
    END IF;
    IF visible_at > clock_timestamp() + interval '3660 days' THEN
        RAISE EXCEPTION 'visible_at is %', visible_at USING ERRCODE = 'PQ004', HINT = 'Give a time within the next ten years.';
    END IF;
    PERFORM messages.check_headers(headers);
END $$;
COMMENT ON FUNCTION messages.check_publish IS
    'Raises PQ004 for an argument of publish that is out of range, PQ005 for headers that are too large.'
    ' [internal]';

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
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    turns_by text := messages.prepare_lane(insert_messages.queue_name, insert_messages.priority);
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
           -- A message that waits in its group gets a place when it enters its lane.
           CASE WHEN insert_messages.group_keys[body.number] IS NOT NULL THEN 'infinity'
                WHEN places IS NULL OR back_at IS NOT NULL THEN due + body.number * interval '1 us' ELSE places[body.number] END,
           CASE WHEN insert_messages.group_keys[body.number] IS NOT NULL THEN due + body.number * interval '1 us'
                WHEN back_at IS NOT NULL THEN places[body.number] END,
           insert_messages.expires_at, insert_messages.headers, insert_messages."references"[body.number], insert_messages.topics[body.number],
           insert_messages.group_keys[body.number], keys[body.number]
      FROM messages.queue q CROSS JOIN jsonb_array_elements(insert_messages.messages) WITH ORDINALITY AS body (value, number)
     WHERE q.queue_name = insert_messages.queue_name COLLATE "default";
    IF NOT FOUND THEN                      -- dropped by a session that this one waited for
        PERFORM messages.raise_unknown_queue(insert_messages.queue_name);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT insert_messages.queue_name, due_times.at, '{}'::bigint[], g.key
      FROM unnest(insert_messages.group_keys) AS g (key) CROSS JOIN (VALUES (moment), (due + cardinality(ids) * interval '1 us')) AS due_times (at)
     WHERE g.key IS NOT NULL AND (due_times.at = moment OR due > moment);
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT insert_messages.queue_name, ends.at, ids FROM (VALUES (back_at), (insert_messages.expires_at)) AS ends (at) WHERE ends.at IS NOT NULL;
    PERFORM messages.notify_for(insert_messages.queue_name, ids[1]);
END $$;
COMMENT ON FUNCTION messages.insert_messages IS
    'Inserts messages that were checked, under these ids: the ready ones into their lane, those of groups to wait for a place; sets their timers, and notifies once. PQ001: unknown queue; PQ005: body too large.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_body(queue_name text, body jsonb, max_body_bytes integer) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes integer := messages.json_bytes(body);
BEGIN
    IF bytes > max_body_bytes THEN
        RAISE EXCEPTION 'a body of % bytes is too large for queue %: its max_body_bytes is %', bytes, quote_literal(queue_name), max_body_bytes
            USING ERRCODE = 'PQ005',
                  HINT = 'Store it in a file and publish its URL (docs/how-to/publish.md), or raise max_body_bytes with messages.alter_queue.';
    END IF;
    RETURN body;
END $$;
COMMENT ON FUNCTION messages.check_body IS
    'Returns a body; PQ005, with the size, the limit and the fix, if it or its text is larger than the queue allows.'
    ' [internal]';

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
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    due     timestamptz;
    expires timestamptz;
    forget  timestamptz;
    item    record;
    own     integer;                       -- the last place at which this call publishes
    source  integer[];                     -- the places whose bodies the keys get
    new_ids bigint[];                      -- the ids of this call, which the messages of new keys get
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
    -- Every session takes the keys in the same order, so that two batches cannot deadlock. Two transactions with several batches can.
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
                -- The message is leased or finished: the key now stands for the new message, as if the key had expired.
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
COMMENT ON FUNCTION messages.publish_deduplicated IS
    'Publishes the bodies whose dedup_key is not remembered; a duplicate returns the id of the message that was published before. on_conflict => replace puts the new body in its place while that message waits; if a new key is given twice, its last body is published at its first place, and its other places are duplicates. Waits for the end of a transaction that publishes under one of the keys. PQ016: that transaction stayed open for more than three seconds, or waits for this one; other errors as in publish.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.remember_key(queue_name text, dedup_key text, id bigint, moment timestamptz, forget timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    known bigint;
BEGIN
    LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;      -- in the order of drop_queue, or each of its tries would find this key locked
    LOOP
        INSERT INTO messages.dedup AS d (queue_name, dedup_key, id, expires_at)
        VALUES (remember_key.queue_name, remember_key.dedup_key, remember_key.id, remember_key.forget)
        ON CONFLICT (queue_name, dedup_key) DO UPDATE SET id = excluded.id, expires_at = excluded.expires_at
         WHERE d.expires_at <= remember_key.moment
        RETURNING d.id INTO known;
        IF NOT FOUND THEN
            SELECT d.id INTO known FROM messages.dedup d
             WHERE d.queue_name = remember_key.queue_name COLLATE "default" AND d.dedup_key = remember_key.dedup_key COLLATE "default" FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;                   -- else the key was deleted meanwhile: try again
    END LOOP;
    RETURN known;
END $$;
COMMENT ON FUNCTION messages.remember_key IS
    'Remembers the id of a message under its dedup_key until forget, and returns it; or the id that is remembered already. Waits for the end of a transaction that publishes under the key.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.replace_waiting(
    queue_name text,
    id         bigint,
    message    jsonb,
    visible_at timestamptz,
    headers    jsonb,
    reference  text,
    topic      text,
    expires_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    was      record;
    waits    boolean;
    own      timestamptz;                 -- its place in the order
BEGIN
    PERFORM messages.check_body(q.queue_name, replace_waiting.message, q.max_body_bytes) FROM messages.queue q     -- no trigger sees it
      WHERE q.queue_name = replace_waiting.queue_name COLLATE "default";
    SELECT m.visible_at, m.due_at, m.fair_key INTO was FROM messages.message_rows m
     WHERE m.id = replace_waiting.id AND m.queue_name = replace_waiting.queue_name COLLATE "default" AND m.lock_expires_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    waits := was.visible_at = 'infinity';                          -- in its group, where it stays
    own := CASE WHEN was.fair_key IS NULL OR waits THEN replace_waiting.visible_at ELSE least(was.due_at, was.visible_at, replace_waiting.visible_at) END;
    UPDATE messages.message_rows m
       SET message = replace_waiting.message, headers = replace_waiting.headers, reference = replace_waiting.reference,
           topic = replace_waiting.topic, expires_at = replace_waiting.expires_at,
           visible_at = CASE WHEN waits THEN m.visible_at ELSE replace_waiting.visible_at END,
           due_at = CASE WHEN waits THEN own ELSE nullif(own, replace_waiting.visible_at) END
     WHERE m.id = replace_waiting.id;
    IF waits THEN
        PERFORM messages.join_groups(replace_waiting.queue_name, ARRAY[replace_waiting.id]);
    ELSIF replace_waiting.visible_at <= moment AND own < replace_waiting.visible_at THEN
        -- The place may lie before the mark of the lane, where no lease looks.
        PERFORM messages.enter(replace_waiting.queue_name, ARRAY[replace_waiting.id]);
    ELSIF replace_waiting.visible_at < was.visible_at THEN
        PERFORM messages.notify_for(replace_waiting.queue_name, replace_waiting.id);
    END IF;
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT replace_waiting.queue_name, ends.at, ARRAY[replace_waiting.id]
      FROM (VALUES (CASE WHEN NOT waits AND replace_waiting.visible_at > moment AND own < replace_waiting.visible_at THEN replace_waiting.visible_at END),
                   (replace_waiting.expires_at)) AS ends (at)
     WHERE ends.at IS NOT NULL;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.replace_waiting IS
    'Replaces the body of a message that nobody has leased, with headers, reference, topic and times; returns false and changes nothing if the message is leased or finished. The message gets the place of its visible_at, and where keys take turns it keeps its own.'
    ' [internal]';
