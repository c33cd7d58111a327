CREATE OR REPLACE FUNCTION messages.status(queue_name text DEFAULT NULL)
RETURNS SETOF messages.queue_status
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    IF status.queue_name IS NOT NULL THEN
        PERFORM messages.check_access(status.queue_name, 'observe');
    END IF;
    IF status.queue_name IS NOT NULL AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = status.queue_name) THEN
        PERFORM messages.raise_unknown_queue(status.queue_name);
    END IF;
    RETURN QUERY
    SELECT q.queue_name, q.paused, count(m.id),
           count(m.id) FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)),
           count(m.id) FILTER (WHERE m.lock_expires_at > moment),
           count(m.id) FILTER (WHERE m.visible_at > moment AND coalesce(m.lock_expires_at <= moment, true)),
           moment - min(m.visible_at) FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)),
           (SELECT count(*) FROM messages.dead_message d WHERE d.queue_name = q.queue_name),
           (SELECT moment - u.finished_at FROM messages.upkeep_run u)
      FROM messages.queue q LEFT JOIN messages.message m ON m.queue_name = q.queue_name
     WHERE (status.queue_name IS NULL OR q.queue_name = status.queue_name)
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY q.queue_name, q.paused
     ORDER BY q.queue_name;
END $$;
COMMENT ON FUNCTION messages.status(text) IS
    'Each queue: depth = ready + leased + delayed; age of the oldest ready message; dead messages without a remedy; time since the last upkeep. Counts every message. Without a name, the queues that this login may observe. PQ001: unknown queue.';
