CREATE OR REPLACE FUNCTION messages.ready_queues(queue_names text[] DEFAULT NULL, count_up_to integer DEFAULT 1000)
RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
    -- Below the low-water mark there is only what a sweep would find. Busy consumers sweep, so look there only when one is due.
    SELECT q.queue_name, sum(found.ready)::bigint, moment - min(found.oldest), min(coming.visible_at) - moment
      FROM (SELECT clock_timestamp() AS moment) clock
     CROSS JOIN messages.queue q
      JOIN messages.queue_priority p ON p.queue_name = q.queue_name
     CROSS JOIN LATERAL (
        SELECT count(*) AS ready, min(oldest.visible_at) AS oldest FROM (
            SELECT m.visible_at FROM messages.message m
             WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment
               AND m.visible_at >= CASE WHEN messages.stored_moment(p.sweep_due, moment + interval '1 s') <= moment
                                        THEN '-infinity' ELSE messages.stored_moment(p.low_water, moment) END
               AND (m.lock_expires_at IS NULL OR m.lock_expires_at <= moment)
               AND (m.expires_at IS NULL OR m.expires_at > moment)
             ORDER BY m.visible_at LIMIT count_up_to) oldest) found
      LEFT JOIN LATERAL (
        SELECT m.visible_at FROM messages.message m
         WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at > moment AND m.visible_at < 'infinity'
         ORDER BY m.visible_at LIMIT 1) coming ON true
     WHERE (queue_names IS NULL OR q.queue_name = ANY (queue_names)) AND NOT q.paused
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY q.queue_name, moment
    HAVING sum(found.ready) > 0 OR min(coming.visible_at) IS NOT NULL
$$;
COMMENT ON FUNCTION messages.ready_queues(text[], integer) IS
    'The queues that are not paused and have a message to lease now (ready counts up to count_up_to per priority) or later (next_in). One query serves any number of waiting consumers.';
