CREATE OR REPLACE FUNCTION messages.ready_queues(
    queue_names text[]  DEFAULT NULL,
    count_up_to integer DEFAULT 1000
)
RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval, topics text[], oldest_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('count_up_to', count_up_to, 0, 2147483647);
    RETURN QUERY
    WITH asked AS MATERIALIZED (           -- one time for all lanes, in any plan
        SELECT clock_timestamp() AS moment,
               -- A mark that is read is locked until the commit. Without it all that is leased is walked over.
               ready_queues.queue_names IS NOT NULL OR NOT EXISTS (SELECT FROM messages.lane l WHERE l.mark IS NOT NULL OFFSET 900) AS by_mark)
    SELECT q.queue_name, least(sum(found.ready), free.leases, min(rate.leases))::bigint,
           moment - min(found.oldest),
           -- No ring follows when a rate_limit allows the next lease, or when the lease of another consumer ends.
           CASE WHEN sum(found.ready) > 0 AND min(rate.leases) = 0 THEN max(rate.next_at) - moment ELSE
           least(CASE WHEN sum(found.ready) > 0 AND free.leases = 0 THEN interval '1 s' END,
                 least(min(coming.visible_at), (SELECT greatest(t.at, moment + interval '10 ms') FROM messages.timer t
                                                 WHERE t.queue_name = q.queue_name AND t.at > moment - interval '5 s' ORDER BY t.at LIMIT 1)) - moment) END,
           -- A topic has no spaces.
           ARRAY(SELECT DISTINCT one FROM unnest(string_to_array(string_agg(found.topics, ' '), ' ')) one ORDER BY one LIMIT 20),
           min(found.oldest)
      FROM asked
     CROSS JOIN messages.queue q
      JOIN messages.lane p ON p.queue_name = q.queue_name AND (p.used OR ready_queues.queue_names IS NOT NULL)
     -- Here it is read once and bounds the walk; in the condition below, being volatile, it would filter each message.
     CROSS JOIN LATERAL (SELECT CASE WHEN by_mark THEN messages.stored_time(p.mark, moment) ELSE 'epoch' END AS from_at) mark
     CROSS JOIN LATERAL (
        SELECT count(*) AS ready, min(oldest.visible_at) AS oldest, string_agg(DISTINCT oldest.topic, ' ') AS topics FROM (
            SELECT greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END) AS visible_at, m.topic
              FROM messages.message_rows m
             WHERE m.queue_name = p.queue_name AND m.priority = p.priority
               AND m.visible_at >= mark.from_at AND m.visible_at <= moment
               AND m.lock_expires_at IS NULL
               AND (m.expires_at IS NULL OR m.expires_at > moment)
             ORDER BY m.visible_at LIMIT count_up_to) oldest) found
      LEFT JOIN LATERAL (
        SELECT m.visible_at FROM messages.message_rows m
         WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at > moment AND m.visible_at < 'infinity'
         ORDER BY m.visible_at LIMIT 1) coming ON true
     CROSS JOIN LATERAL (
        SELECT CASE WHEN q.max_leased IS NULL THEN 'infinity'::numeric
                    ELSE greatest(0, q.max_leased - (
                        SELECT count(*) FROM messages.message_rows m
                         WHERE m.id = ANY (ARRAY(SELECT unnest(t.ids) FROM messages.timer t WHERE t.queue_name = q.queue_name))
                           AND m.lock_expires_at > moment)) END AS leases) free
      -- Without OFFSET it would be called for each lane, whatever the condition says.
      LEFT JOIN LATERAL (SELECT r.leases, r.next_at FROM messages.rate_left(q, moment) r WHERE q.rate_limit IS NOT NULL OFFSET 0) rate ON true
     WHERE (queue_names IS NULL OR q.queue_name = ANY (queue_names)) AND NOT q.paused
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY q.queue_name, moment, free.leases
    HAVING sum(found.ready) > 0 OR min(coming.visible_at) IS NOT NULL
        OR EXISTS (SELECT FROM messages.timer t WHERE t.queue_name = q.queue_name AND t.at > moment - interval '5 s');
END $$;
COMMENT ON FUNCTION messages.ready_queues(text[], integer) IS
    'The queues that are not paused and have a message to lease now (ready counts up to count_up_to per priority, and no more than max_leased and rate_limit allow), or later (next_in: when a delay or a lease ends, or when rate_limit allows the next lease), with at most twenty topics of the messages that were counted, and the time since which the oldest has been ready. Unknown names are left out: closed_queues() returns those. Changes nothing: whoever waits calls scan(). PQ004: a negative number.';
