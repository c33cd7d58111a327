CREATE OR REPLACE FUNCTION messages.dead_queues(queue_names text[] DEFAULT NULL)
RETURNS TABLE (queue_name text, result text, waiting bigint, newest_id bigint, oldest_age interval, newest_age interval, causes jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.queue_name, c.result, sum(c.waiting)::bigint, max(c.newest_id), clock_timestamp() - min(c.first_at), clock_timestamp() - max(c.last_at),
           jsonb_agg(jsonb_build_object(
               'result', c.result, 'fingerprint', c.fingerprint, 'waiting', c.waiting,
               'first_at', to_char(c.first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'last_at', to_char(c.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'newest_id', c.newest_id) ORDER BY c.place) FILTER (WHERE c.place <= 1000)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at, max(d.archived_at) AS last_at,
                   max(d.id) AS newest_id,
                   row_number() OVER (PARTITION BY d.queue_name, d.result ORDER BY count(*) DESC, max(d.id) DESC) AS place
              FROM messages.dead_message d
             WHERE (queue_names IS NULL OR d.queue_name = ANY (queue_names))
               AND ((SELECT r.everything FROM messages.session_reach r)
                    OR d.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     GROUP BY c.queue_name, c.result
$$;
COMMENT ON FUNCTION messages.dead_queues(text[]) IS
    'The queues that have dead messages without a remedy and without a lease, by result; causes has the fingerprints of each with the newest id, the most frequent first, at most a thousand. Unknown names are left out.';
