CREATE OR REPLACE FUNCTION messages.dead_ids(
    queue_name   text    DEFAULT NULL,
    results      text[]  DEFAULT NULL,
    fingerprints text[]  DEFAULT NULL,
    max_messages integer DEFAULT NULL,
    max_requeues integer DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_dead_lease(dead_ids.queue_name, 1, dead_ids.results, dead_ids.max_requeues);
    PERFORM messages.check_number('max_messages', dead_ids.max_messages, 1, 10000000);
    RETURN QUERY
    SELECT d.id FROM messages.dead_message d
     WHERE (dead_ids.queue_name IS NULL OR d.queue_name = dead_ids.queue_name)
       AND (dead_ids.results IS NULL OR d.result = ANY (dead_ids.results))
       AND (dead_ids.fingerprints IS NULL OR d.fingerprint = ANY (dead_ids.fingerprints))
       AND (dead_ids.max_requeues IS NULL OR d.requeues < dead_ids.max_requeues)
     ORDER BY d.archived_at, d.id LIMIT dead_ids.max_messages;
END $$;
COMMENT ON FUNCTION messages.dead_ids(text, text[], text[], integer, integer) IS
    'The ids of dead messages without a remedy, oldest first, leased ones too; only those that were requeued fewer than max_requeues times. PQ001: unknown queue; PQ004: bad argument.';
