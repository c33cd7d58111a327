CREATE OR REPLACE FUNCTION messages.dead_ids(
    queue_name   text    DEFAULT NULL,
    results      text[]  DEFAULT NULL,
    fingerprints text[]  DEFAULT NULL,
    max_messages integer DEFAULT NULL,
    max_requeues integer DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    reference    text    DEFAULT NULL,
    topic        text    DEFAULT NULL,
    headers      jsonb   DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    pattern text := messages.topic_regex(dead_ids.topic);
    -- What the list of dead messages does not say is looked up in the archive.
    filtered boolean := coalesce(dead_ids.topic, dead_ids.headers::text) IS NOT NULL;
BEGIN
    PERFORM messages.check_headers(dead_ids.headers), messages.check_dead_lease(dead_ids.queue_name, dead_ids.results, dead_ids.max_requeues),
            messages.check_number('max_messages', dead_ids.max_messages, 1, 10000000);
    RETURN QUERY
    SELECT d.id FROM messages.dead_message d
     WHERE (dead_ids.queue_name IS NULL OR d.queue_name = dead_ids.queue_name COLLATE "default")
       AND (dead_ids.results IS NULL OR d.result = ANY (dead_ids.results))
       AND (dead_ids.fingerprints IS NULL OR d.fingerprint = ANY (dead_ids.fingerprints))
       AND (dead_ids.ids IS NULL OR d.id = ANY (dead_ids.ids))
       AND (dead_ids.max_requeues IS NULL OR d.requeues < dead_ids.max_requeues)
       AND (dead_ids.since IS NULL OR d.archived_at >= dead_ids.since)
       AND (dead_ids.until IS NULL OR d.archived_at < dead_ids.until)
       -- Few messages have a reference, and an index finds them; the list of the dead may have a million.
       AND (dead_ids.reference IS NULL OR d.id = ANY (ARRAY(
            SELECT a.id FROM messages.archive_rows a WHERE a.reference = dead_ids.reference)))
       AND (NOT filtered OR EXISTS (
            SELECT FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at
               AND (pattern IS NULL OR '.' || a.topic ~ pattern)
               AND (dead_ids.headers IS NULL OR a.headers @> dead_ids.headers)))
     ORDER BY d.archived_at, d.id LIMIT dead_ids.max_messages;
END $$;
COMMENT ON FUNCTION messages.dead_ids(text, text[], text[], integer, integer, bigint[], text, text, jsonb, timestamptz, timestamptz) IS
    'The ids of dead messages without a remedy, oldest first, including leased ones; only those that were requeued fewer than max_requeues times, have this reference, a topic that matches the pattern and headers that contain these, and died at since or later and before until. PQ001: unknown queue; PQ004: bad argument.';
