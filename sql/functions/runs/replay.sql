CREATE OR REPLACE FUNCTION messages.replay(run_id text, queue_name text, rows jsonb, priority integer DEFAULT 4) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    given     record;
    ids       bigint[];
    known     boolean[];
    published bigint;
BEGIN
    PERFORM messages.check_queue(replay.queue_name, 'publish');
    IF replay.rows = '[]' THEN
        RETURN 0;
    END IF;
    IF jsonb_typeof(replay.rows) IS DISTINCT FROM 'array'
       OR EXISTS (SELECT FROM jsonb_array_elements(replay.rows) AS r
                   WHERE NOT jsonb_path_exists(r, 'strict $ ? (@.id >= 0 && @.id <= 9223372036854775807 && @.id.floor() == @.id)')) THEN
        RAISE EXCEPTION 'the rows are not messages' USING ERRCODE = 'PQ004', HINT = 'Give a JSON array of objects, each with an id.';
    END IF;
    PERFORM messages.check_run_begun(replay.run_id, 'replay');
    SELECT array_agg(r.id ORDER BY place) AS ids, array_agg(r.headers ORDER BY place) AS headers,
           jsonb_agg(coalesce(r.message, 'null') ORDER BY place) AS bodies, array_agg(r.reference ORDER BY place) AS "references",
           array_agg(r.topic ORDER BY place) AS topics, array_agg(r.group_key ORDER BY place) AS group_keys,
           array_agg(format('replay/%s/%s', run.hash, r.id) ORDER BY place) AS dedup_keys
      INTO given
      FROM ROWS FROM (jsonb_to_recordset(replay.rows)
                      AS (id bigint, message jsonb, headers jsonb, reference text, topic text, group_key text))
           WITH ORDINALITY AS r (id, message, headers, reference, topic, group_key, place)
     -- The hash fits into a key, however long the name is, and includes the login: a run of another login with that name is another run.
     CROSS JOIN encode(sha256(convert_to(session_user || '/' || replay.run_id, 'UTF8')), 'hex') AS run (hash);
    SELECT array_agg(d.id ORDER BY d.place), array_agg(d.duplicate ORDER BY d.place) INTO ids, known
      FROM messages.publish_deduplicated(replay.queue_name, given.bodies, given.dedup_keys, dedup_window => interval '90 days',
               priority => replay.priority, "references" => given."references", topics => given.topics,
               group_keys => given.group_keys) WITH ORDINALITY AS d (id, duplicate, place);
    PERFORM messages.check_headers(h) FROM unnest(given.headers) AS h WHERE jsonb_typeof(h) = 'object';
    -- In the same transaction, so that nobody sees a message without these.
    UPDATE messages.message_rows m
       SET headers = CASE WHEN jsonb_typeof(given.headers[d.place]) = 'object' THEN given.headers[d.place] ELSE '{}' END
                     || jsonb_build_object('replay_of', given.ids[d.place], 'replay_run', replay.run_id)
      FROM unnest(ids, known) WITH ORDINALITY AS d (id, known, place)
     WHERE m.id = d.id AND NOT d.known;
    GET DIAGNOSTICS published = ROW_COUNT;
    RETURN published;
END $$;
COMMENT ON FUNCTION messages.replay(text, text, jsonb, integer) IS
    'Publishes copies of messages [{"id", "message", "headers", "reference", "topic", "group_key"}] with the headers replay_of and replay_run, and returns how many. Each id is published once per run and queue within 90 days. Without rows it only checks that the queue exists. Errors as in publish.';
