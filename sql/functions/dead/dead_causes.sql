CREATE OR REPLACE FUNCTION messages.dead_causes(queue_name text DEFAULT NULL)
RETURNS TABLE (cause_queue text, result text, fingerprint text, waiting bigint, first_at timestamptz, last_at timestamptz,
               newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.queue_name, c.result, c.fingerprint, c.waiting, c.first_at, c.last_at, c.newest_id,
           (SELECT coalesce(a.failure ->> 'error', CASE WHEN (SELECT r.bodies FROM messages.session_reach r) OR a.queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN left(a.details, 200) END) FROM messages.archive_rows a
             WHERE a.id = c.newest_id AND a.archived_at >= c.first_at AND a.archived_at <= c.last_at)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at,
                   max(d.archived_at) AS last_at, max(d.id) AS newest_id
              FROM messages.dead_message d
             WHERE (dead_causes.queue_name IS NULL OR d.queue_name = dead_causes.queue_name COLLATE "default")
               AND ((SELECT r.everything FROM messages.session_reach r)
                    OR d.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     ORDER BY c.waiting DESC, c.newest_id;
    IF NOT FOUND AND dead_causes.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_causes.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_causes(text) IS
    'Dead messages without a remedy, by queue, result and fingerprint, with the class of the newest error as an example, or its text if this login may read the bodies. PQ001: unknown queue, with no dead message.';
