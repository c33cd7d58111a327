CREATE OR REPLACE FUNCTION messages.dead_queues(queue_names text[] DEFAULT NULL)
RETURNS TABLE (queue_name text, result text, waiting bigint, newest_id bigint, oldest_age interval, newest_age interval)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.queue_name, d.result, count(*), max(d.id), clock_timestamp() - min(d.archived_at), clock_timestamp() - max(d.archived_at)
      FROM messages.dead_message d
     WHERE (queue_names IS NULL OR d.queue_name = ANY (queue_names))
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR d.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
       AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
     GROUP BY d.queue_name, d.result
$$;
COMMENT ON FUNCTION messages.dead_queues(text[]) IS
    'The queues that have dead messages without a remedy and without a lease, by result.';
