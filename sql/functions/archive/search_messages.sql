CREATE OR REPLACE FUNCTION messages.search_messages(
    queue_name   text        DEFAULT NULL,
    reference    text        DEFAULT NULL,
    state        text        DEFAULT NULL,
    fingerprint  text        DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL,
    max_messages integer     DEFAULT 100,
    message_id   bigint      DEFAULT NULL,
    after_id     bigint      DEFAULT NULL,
    after_place  timestamptz DEFAULT NULL
) RETURNS TABLE (id bigint, message_queue text, message_state text, at timestamptz, ends_at timestamptz, created_at timestamptz, attempts integer, worker text,
                 message_reference text, message_topic text, cause text, error text, remedy text, place timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    -- What a list of one state walks, and how. The walks end after so many messages, whether they match or not.
    waits    CONSTANT boolean := search_messages.state IN ('ready', 'delayed', 'leased');
    ended    CONSTANT boolean := NOT coalesce(waits, true) OR search_messages.fingerprint IS NOT NULL;
    later    CONSTANT boolean := coalesce(search_messages.state IN ('delayed', 'leased'), false);
    by_key   CONSTANT boolean := coalesce(search_messages.message_id::text, search_messages.reference) IS NOT NULL;
    of_dead  CONSTANT boolean := search_messages.state = 'dead' AND NOT by_key;
    in_time  CONSTANT text    := 'archived_at >= coalesce($6, ''-infinity'') AND archived_at <= coalesce(least($7, $4), ''infinity'')';
    lanes    boolean;                      -- along the order of each priority of each queue that is named, or that this login reaches
    by_time  boolean;
    source   text;
    waiting  text;
    archived text;
    names    text[];
    reach    messages.session_reach;
BEGIN
    PERFORM messages.check_number('max_messages', search_messages.max_messages, 1, 10000, required => true),
            messages.check_choice('state', search_messages.state,
                                  '{ready,delayed,leased,done,dead,success,failed,rejected,lock_expired,expired,cancelled}');
    PERFORM messages.check_queue(search_messages.queue_name, 'observe') WHERE search_messages.queue_name IS NOT NULL;
    IF ended AND waits THEN
        RETURN;
    END IF;
    SELECT r.* INTO reach FROM messages.session_reach r;
    names := CASE WHEN search_messages.queue_name IS NOT NULL THEN ARRAY[search_messages.queue_name]
                  WHEN NOT reach.everything THEN reach.queue_names END;
    lanes := names IS NOT NULL AND NOT by_key;

    -- The parameters of both queries: $1 now, $2 queues, $3 reference, $4 after_place, $5 fingerprint, $6 since, $7 until, $8 max_messages,
    -- $9 and $10 whose bodies this login may read, $11 message_id, $12 after_id.
    -- Unfinished: by id, by reference, along the order of each priority, or the newest ids.
    IF NOT ended THEN
        source := CASE
            WHEN search_messages.message_id IS NOT NULL THEN 'SELECT m.* FROM messages.message_rows m WHERE m.id = $11'
            WHEN search_messages.reference IS NOT NULL THEN 'SELECT m.* FROM messages.message_rows m WHERE m.reference = $3 LIMIT 100000'
            WHEN lanes THEN format(
                'SELECT m.* FROM messages.message_rows m
                  WHERE m.queue_name = q.name AND m.priority = p.priority AND %s ORDER BY m.visible_at %s LIMIT 10000',
                CASE search_messages.state WHEN 'delayed' THEN 'm.visible_at > $1 AND ($4 IS NULL OR m.visible_at >= $4)'
                                           WHEN 'leased' THEN 'm.visible_at <= $1 AND ($4 IS NULL OR m.visible_at >= $4)'
                                           WHEN 'ready' THEN 'm.visible_at <= least($1, $4)' ELSE 'true' END,
                CASE WHEN later THEN 'ASC' ELSE 'DESC' END)
            ELSE 'SELECT m.* FROM messages.message_rows m WHERE $12 IS NULL OR m.id < $12 ORDER BY m.id DESC LIMIT 100000' END;
        waiting := format($query$
            SELECT m.id, m.queue_name, CASE WHEN m.lock_expires_at > $1 THEN 'leased' WHEN m.visible_at = 'infinity' THEN 'behind'
                                            WHEN m.visible_at > $1 THEN 'delayed' ELSE 'ready' END,
                   CASE WHEN m.lock_expires_at > $1 THEN m.leased_at WHEN m.visible_at > $1 THEN m.created_at ELSE m.visible_at END AS at,
                   CASE WHEN m.lock_expires_at > $1 THEN m.lock_expires_at
                        WHEN m.visible_at > $1 THEN nullif(m.visible_at, 'infinity') END,
                   m.created_at, m.attempts::integer, m.locked_by, m.reference, m.topic, NULL,
                   CASE WHEN $9 OR m.queue_name = ANY ($10) THEN ltrim(m.last_error)
                        ELSE substring(m.last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END, NULL, least(m.visible_at, '9999-12-31') AS place
              FROM (%s) m
             WHERE ($2 IS NULL OR m.queue_name = ANY ($2))
               AND ($3 IS NULL OR m.reference = $3)
               AND ($6 IS NULL OR m.created_at >= $6) AND ($7 IS NULL OR m.created_at < $7) AND %s AND %s
             ORDER BY %s LIMIT $8 $query$, source,
            CASE search_messages.state WHEN 'leased' THEN 'm.lock_expires_at > $1'
                                       WHEN 'ready' THEN 'coalesce(m.lock_expires_at <= $1, true) AND m.visible_at <= $1'
                                       WHEN 'delayed' THEN 'coalesce(m.lock_expires_at <= $1, true) AND m.visible_at > $1' ELSE 'true' END,
            CASE WHEN search_messages.after_id IS NULL THEN 'true' WHEN NOT lanes OR NOT waits THEN 'm.id < $12'
                 WHEN later THEN '(least(m.visible_at, ''9999-12-31''), m.id) > ($4, $12)' ELSE '(m.visible_at, m.id) < ($4, $12)' END,
            CASE WHEN NOT lanes THEN 'm.id DESC' WHEN later THEN 'm.visible_at, m.id' ELSE 'm.visible_at DESC, m.id DESC' END);
        IF lanes THEN
            waiting := format('SELECT m.* FROM unnest($2) AS q (name) CROSS JOIN generate_series(9, 0, -1) AS p (priority)
                                CROSS JOIN LATERAL (%s) m ORDER BY %s LIMIT $8', waiting,
                              CASE WHEN later THEN 'm.place, m.id' ELSE 'm.place DESC, m.id DESC' END);
        END IF;
    END IF;

    -- Finished: by id, by reference, from the list of the dead, by cause, in a time, or the newest ids.
    IF NOT coalesce(waits, false) THEN
        by_time := NOT by_key
                   AND CASE WHEN of_dead THEN names IS NOT NULL AND search_messages.fingerprint IS NULL
                            ELSE coalesce(search_messages.fingerprint, search_messages.since::text, search_messages.until::text) IS NOT NULL END;
        source := CASE
            WHEN search_messages.message_id IS NOT NULL THEN 'SELECT a.* FROM messages.archive_rows a WHERE a.id = $11'
            WHEN search_messages.reference IS NOT NULL THEN 'SELECT a.* FROM messages.archive_rows a WHERE a.reference = $3 LIMIT 100000'
            WHEN of_dead THEN format(
                'SELECT d.id AS dead_id, d.archived_at AS died_at, a.*
                   FROM %s
                  CROSS JOIN LATERAL (
                    SELECT d.id, d.archived_at FROM messages.dead_message d
                     WHERE %s AND ($5 IS NULL OR d.fingerprint = $5) AND %s ORDER BY %s LIMIT 10000) d
                  CROSS JOIN LATERAL (SELECT a.* FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at OFFSET 0) a',
                CASE WHEN cardinality(names) > 1 THEN 'unnest($2) AS q (name)' ELSE '(VALUES ($2[1])) AS q (name)' END,
                CASE WHEN names IS NULL THEN 'true' ELSE 'd.queue_name = q.name' END,
                CASE WHEN by_time THEN in_time ELSE '($12 IS NULL OR d.id < $12)' END,
                CASE WHEN by_time THEN 'd.archived_at DESC, d.id DESC' ELSE 'd.id DESC' END)
            WHEN search_messages.fingerprint IS NOT NULL THEN
                'SELECT a.* FROM messages.archive_rows a WHERE a.fingerprint = $5 AND a.archived_at <= coalesce(least($7, $4), ''infinity'')
                  ORDER BY a.archived_at DESC LIMIT 100000'
            WHEN by_time THEN 'SELECT a.* FROM messages.archive_rows a WHERE ' || in_time
            ELSE 'SELECT a.* FROM messages.archive_rows a WHERE $12 IS NULL OR a.id < $12 ORDER BY a.id DESC LIMIT 100000' END;
        archived := format($query$
            SELECT a.id, a.queue_name, a.result, a.archived_at AS at, NULL::timestamptz, a.created_at, a.attempts::integer, a.handled_by, a.reference, a.topic,
                   a.fingerprint,
                   nullif(CASE WHEN $9 OR a.queue_name = ANY ($10) THEN concat_ws(': ', a.failure ->> 'error', left(coalesce(a.failure ->> 'message', a.details), 500))
                        ELSE a.failure ->> 'error' END, ''), a.remedy,
                   a.archived_at AS place
              FROM (%s) a
             WHERE ($2 IS NULL OR a.queue_name = ANY ($2))
               AND ($3 IS NULL OR a.reference = $3)
               AND ($5 IS NULL OR a.fingerprint = $5)
               AND ($6 IS NULL OR a.archived_at >= $6) AND ($7 IS NULL OR a.archived_at < $7) AND %s AND %s
             ORDER BY %s LIMIT $8 $query$, source,
            CASE search_messages.state WHEN 'done' THEN '(a.result IN (''success'', ''cancelled'') OR a.remedy IS NOT NULL)'
                                       WHEN 'dead' THEN 'a.result NOT IN (''success'', ''cancelled'') AND a.remedy IS NULL'
                                       ELSE coalesce('a.result = ' || quote_literal(search_messages.state), 'true') END,
            CASE WHEN search_messages.after_id IS NULL THEN 'true' WHEN by_time THEN '(a.archived_at, a.id) < ($4, $12)' ELSE 'a.id < $12' END,
            CASE WHEN of_dead THEN CASE WHEN by_time THEN 'a.died_at DESC, a.dead_id DESC' ELSE 'a.dead_id DESC' END
                 WHEN by_time THEN 'a.archived_at DESC, a.id DESC' ELSE 'a.id DESC' END);
    END IF;
    RETURN QUERY EXECUTE CASE WHEN waiting IS NULL THEN archived WHEN archived IS NULL THEN waiting
                              ELSE format('SELECT f.* FROM ((%s) UNION ALL (%s)) f ORDER BY f.at DESC, f.id DESC LIMIT $8', waiting, archived) END
      USING moment, names, search_messages.reference, search_messages.after_place, search_messages.fingerprint, search_messages.since,
            search_messages.until, search_messages.max_messages, reach.bodies, reach.body_queues, search_messages.message_id, search_messages.after_id;
END $$;
COMMENT ON FUNCTION messages.search_messages(text, text, text, text, timestamptz, timestamptz, integer, bigint, bigint, timestamptz) IS
    'Messages, unfinished and archived, without bodies, and of errors only the class, unless this login may read the bodies; NULL matches any. state asks for ready, delayed (also behind an earlier one of its group), leased, done, dead (without a remedy) or a result. A list of one state is the newest first, delayed and leased ones the longest waiting first, and continues after the id and place of its last row. at is since when it is ready, leased, archived, or waits; ends_at is the end of a lease or delay. since and until: published, or of finished ones archived. An id, reference or cause is found through an index. Otherwise it looks at the 10,000 next messages of each priority of a queue, and of each queue of a login that is limited to some, the newest 10,000 dead ones and the newest 100,000 of the archive, which a time replaces. PQ001: unknown queue; PQ004: bad argument.';
