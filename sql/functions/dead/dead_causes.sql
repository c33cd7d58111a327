CREATE OR REPLACE FUNCTION messages.dead_causes(queue_name text DEFAULT NULL)
RETURNS TABLE (cause_queue text, result text, fingerprint text, waiting bigint, first_at timestamptz, last_at timestamptz,
               newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r)
    SELECT c.queue_name, c.result, c.fingerprint, c.waiting, c.first_at, c.last_at, c.newest_id,
           (SELECT coalesce(a.failure ->> 'error', CASE WHEN r.bodies OR a.queue_name = ANY (r.body_queues) THEN left(a.details, 200) END)
              FROM messages.archive_rows a CROSS JOIN reach r
             WHERE a.id = c.newest_id AND a.archived_at >= c.first_at AND a.archived_at <= c.last_at)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at,
                   max(d.archived_at) AS last_at, max(d.id) AS newest_id
              FROM messages.dead_message d CROSS JOIN reach r
             WHERE (dead_causes.queue_name IS NULL OR d.queue_name = dead_causes.queue_name COLLATE "default")
               AND (r.everything OR d.queue_name = ANY (r.queue_names))
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     ORDER BY c.waiting DESC, c.newest_id;
    IF NOT FOUND AND dead_causes.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_causes.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_causes(text) IS
    'Dead messages without a remedy, by queue, result and fingerprint, with the class of the newest error as an example, or its text if this login may read the bodies. PQ001: unknown queue, with no dead message.';
