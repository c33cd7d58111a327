CREATE OR REPLACE FUNCTION messages.retried_causes(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL, max_causes integer DEFAULT 100)
RETURNS TABLE (cause_queue text, fingerprint text, waiting bigint, attempts bigint, first_at timestamptz, last_at timestamptz, newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('max_causes', retried_causes.max_causes, 1, 1000, required => true);
    PERFORM messages.check_queue(retried_causes.queue_name, 'observe') WHERE retried_causes.queue_name IS NOT NULL;
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    cause AS (
        SELECT f.queue_name, f.fingerprint, count(DISTINCT f.message_id) AS waiting, count(*) AS attempts, min(f.failed_at) AS first_at,
               max(f.failed_at) AS last_at, max(f.message_id) AS newest_id
          FROM messages.queue q CROSS JOIN reach r
         CROSS JOIN LATERAL (
            SELECT f.* FROM messages.failed_attempt f
             WHERE f.queue_name = q.queue_name AND f.failed_at >= coalesce(retried_causes.since, clock_timestamp() - interval '1 day')
             ORDER BY f.failed_at DESC LIMIT 100000) f
         WHERE (retried_causes.queue_name IS NULL OR q.queue_name = retried_causes.queue_name COLLATE "default")
           AND (r.everything OR q.queue_name = ANY (r.queue_names))
           AND EXISTS (SELECT FROM messages.message_rows m WHERE m.id = f.message_id)
         GROUP BY 1, 2 ORDER BY 3 DESC, 2 LIMIT retried_causes.max_causes)
    SELECT c.queue_name, c.fingerprint, c.waiting, c.attempts, c.first_at, c.last_at, c.newest_id,
           (SELECT CASE WHEN r.bodies OR f.queue_name = ANY (r.body_queues)
                        THEN left(concat_ws(': ', f.failure ->> 'error', f.failure ->> 'message'), 500) ELSE f.failure ->> 'error' END
              FROM messages.failed_attempt f CROSS JOIN reach r
             WHERE f.message_id = c.newest_id AND f.fingerprint = c.fingerprint ORDER BY f.attempt DESC LIMIT 1)
      FROM cause c ORDER BY c.waiting DESC, c.fingerprint;
END $$;
COMMENT ON FUNCTION messages.retried_causes(text, timestamptz, integer) IS
    'Why attempts of messages failed that are not finished yet, since a day ago: how many messages wait, how many of their attempts failed, and the class of the newest error, or its text if this login may read the bodies. Looks at the newest 100,000 failed attempts of each queue. PQ001: unknown queue; PQ004: bad argument.';
