CREATE OR REPLACE FUNCTION messages.search_messages(
    queue_name   text        DEFAULT NULL,
    reference    text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    result       text        DEFAULT NULL,
    fingerprint  text        DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL,
    max_messages integer     DEFAULT 100
) RETURNS TABLE (id bigint, message_queue text, state text, at timestamptz, created_at timestamptz, attempts integer, worker text,
                 message_reference text, cause text, error text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    names  text[];
    reach  messages.session_reach;
BEGIN
    PERFORM messages.check_number('max_messages', coalesce(search_messages.max_messages, 0), 1, 10000), messages.check_headers(search_messages.headers);
    IF search_messages.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(search_messages.queue_name, 'observe');
    END IF;
    SELECT r.* INTO reach FROM messages.session_reach r;
    names := CASE WHEN search_messages.queue_name IS NOT NULL THEN ARRAY[search_messages.queue_name]
                  WHEN NOT reach.everything THEN reach.queue_names END;
    RETURN QUERY
    SELECT f.* FROM (
        (SELECT m.id, m.queue_name, CASE WHEN m.lock_expires_at > moment THEN 'leased' WHEN m.visible_at = 'infinity' THEN 'behind'
                                         WHEN m.visible_at > moment THEN 'delayed' ELSE 'ready' END,
                coalesce(m.leased_at, m.created_at) AS at, m.created_at, m.attempts::integer, m.locked_by, m.reference, NULL,
                CASE WHEN reach.bodies OR m.queue_name = ANY (reach.body_queues) THEN ltrim(m.last_error)
                     ELSE substring(m.last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END
           FROM messages.message_rows m
          WHERE search_messages.result IS NULL AND search_messages.fingerprint IS NULL
            AND (names IS NULL OR m.queue_name = ANY (names))
            AND (search_messages.reference IS NULL OR m.reference = search_messages.reference)
            AND (search_messages.headers IS NULL OR m.headers @> search_messages.headers)
            AND (search_messages.since IS NULL OR m.created_at >= search_messages.since)
            AND (search_messages.until IS NULL OR m.created_at < search_messages.until)
          ORDER BY m.id DESC LIMIT search_messages.max_messages)
        UNION ALL
        (SELECT a.id, a.queue_name, a.result, a.archived_at, a.created_at, a.attempts, a.handled_by, a.reference, a.fingerprint,
                coalesce(a.failure ->> 'error',
                         CASE WHEN reach.bodies OR a.queue_name = ANY (reach.body_queues) THEN left(a.details, 500) END)
           FROM messages.archive_rows a
          WHERE (search_messages.result IS NULL OR a.result = search_messages.result)
            AND (search_messages.fingerprint IS NULL OR a.fingerprint = search_messages.fingerprint)
            AND (names IS NULL OR a.queue_name = ANY (names))
            AND (search_messages.reference IS NULL OR a.reference = search_messages.reference)
            AND (search_messages.headers IS NULL OR a.headers @> search_messages.headers)
            AND (search_messages.since IS NULL OR a.archived_at >= search_messages.since)
            AND (search_messages.until IS NULL OR a.archived_at < search_messages.until)
          ORDER BY a.archived_at DESC, a.id DESC LIMIT search_messages.max_messages)) f
     ORDER BY f.at DESC, f.id DESC LIMIT search_messages.max_messages;
END $$;
COMMENT ON FUNCTION messages.search_messages(text, text, jsonb, text, text, timestamptz, timestamptz, integer) IS
    'Messages, unfinished and archived, newest first, without bodies, and of errors only the class, unless this login may read the bodies; NULL matches any. state is ready, leased, delayed, behind (an earlier one of its group) or the result; at is when it was archived, leased or published. headers: those that contain these. A reference or cause is found through an index; anything else reads what the time allows. PQ001: unknown queue; PQ004: bad argument.';
