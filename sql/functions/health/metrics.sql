CREATE OR REPLACE FUNCTION messages.metrics(
    max_queues  integer DEFAULT 200,
    queue_names text[]  DEFAULT NULL,
    names       text[]  DEFAULT NULL
) RETURNS TABLE (metric text, kind text, help text, labels jsonb, value double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    shown text[];
BEGIN
    PERFORM messages.check_number('max_queues', metrics.max_queues, 0, 10000, required => true);
    -- The oldest queues, not the busiest: which ones have series of their own must not change from one look to the next.
    shown := ARRAY(
        SELECT q.queue_name FROM messages.queue q
         WHERE (metrics.queue_names IS NULL OR q.queue_name = ANY (metrics.queue_names)) AND q.queue_name <> 'other'
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
         ORDER BY q.created_at, q.queue_name LIMIT metrics.max_queues);
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    level AS MATERIALIZED (
        SELECT CASE WHEN s.queue_name = ANY (shown) THEN s.queue_name ELSE 'other' END AS queue, sum(s.ready) AS ready, sum(s.leased) AS leased,
               sum(s.delayed) AS delayed, sum(s.dead) AS dead, max(s.oldest_age) AS oldest_age,
               max(s.oldest_age) FILTER (WHERE s.leased = 0 AND NOT s.paused) AS unconsumed_age, count(*) FILTER (WHERE s.paused) AS paused,
               count(*) AS queues, max(s.upkeep_age) AS upkeep_age
          FROM messages.status() s GROUP BY 1),
    total AS MATERIALIZED (
        SELECT CASE WHEN t.queue_name = ANY (shown) THEN t.queue_name ELSE 'other' END AS queue, sum(t.arrivals) AS arrivals, sum(t.success) AS success,
               sum(t.failed) AS failed, sum(t.rejected) AS rejected, sum(t.lock_expired) AS lock_expired, sum(t.expired) AS expired,
               sum(t.cancelled) AS cancelled, sum(t.attempts) AS attempts
          FROM messages.history t CROSS JOIN reach r WHERE t.grain = 'all' AND (r.everything OR t.queue_name = ANY (r.queue_names)) GROUP BY 1),
    recent AS MATERIALIZED (
        SELECT CASE WHEN q.queue_name = ANY (shown) THEN q.queue_name ELSE 'other' END AS queue, max(q.wait_max) AS wait_max, max(q.run_max) AS run_max
          FROM messages.queue_rates() q GROUP BY 1)
    SELECT m.* FROM (
        SELECT 'pgqueue_unfinished_messages', 'gauge', 'Unfinished messages by state.', jsonb_build_object('queue', l.queue, 'state', v.state), v.number::double precision
          FROM level l CROSS JOIN LATERAL (VALUES ('ready', l.ready), ('leased', l.leased), ('delayed', l.delayed)) AS v (state, number)
        UNION ALL
        SELECT 'pgqueue_dead_messages', 'gauge', 'Dead messages without a remedy.', jsonb_build_object('queue', l.queue), l.dead FROM level l
        UNION ALL
        SELECT 'pgqueue_oldest_ready_age_seconds', 'gauge', 'How long the oldest ready message has been ready; 0 if none is.',
               jsonb_build_object('queue', l.queue), coalesce(date_part('epoch', l.oldest_age), 0) FROM level l
        UNION ALL
        SELECT 'pgqueue_oldest_unconsumed_age_seconds', 'gauge', 'How long the oldest ready message has been ready, of queues that are not paused and of which nobody holds a lease; 0 if none is.',
               jsonb_build_object('queue', l.queue), coalesce(date_part('epoch', l.unconsumed_age), 0) FROM level l
        UNION ALL
        SELECT 'pgqueue_queue_paused', 'gauge', '1 if the queue is paused; of other, how many are.', jsonb_build_object('queue', l.queue), l.paused FROM level l
        UNION ALL
        SELECT 'pgqueue_queues', 'gauge', 'Queues.', '{}', coalesce(sum(l.queues), 0) FROM level l
        UNION ALL
        SELECT 'pgqueue_upkeep_age_seconds', 'gauge', 'Time since the last upkeep.', '{}', date_part('epoch', max(l.upkeep_age)) FROM level l
        UNION ALL
        SELECT 'pgqueue_oldest_lease_age_seconds', 'gauge', 'How long the lease that is held for longest has been held; none if nothing is leased.',
               jsonb_build_object('queue', CASE WHEN o.queue_name = ANY (shown) THEN o.queue_name ELSE 'other' END),
               date_part('epoch', clock_timestamp() - min(o.leased_at))
          FROM messages.oldest_leases() o GROUP BY 4
        UNION ALL
        SELECT 'pgqueue_published_messages_total', 'counter', 'Messages published, as of the upkeep before the last.', jsonb_build_object('queue', t.queue), t.arrivals FROM total t
        UNION ALL
        SELECT 'pgqueue_finished_messages_total', 'counter', 'Messages archived by result, as of the upkeep before the last.', jsonb_build_object('queue', t.queue, 'result', v.result), v.number
          FROM total t CROSS JOIN LATERAL (VALUES ('success', t.success), ('failed', t.failed), ('rejected', t.rejected),
                                                  ('lock_expired', t.lock_expired), ('expired', t.expired), ('cancelled', t.cancelled)) AS v (result, number)
        UNION ALL
        SELECT 'pgqueue_delivery_attempts_total', 'counter', 'Deliveries that the archived messages took.', jsonb_build_object('queue', t.queue), t.attempts FROM total t
        UNION ALL
        SELECT 'pgqueue_longest_wait_seconds', 'gauge', 'Longest time from publish to the last lease, of what was archived in the last five minutes.',
               jsonb_build_object('queue', r.queue), coalesce(date_part('epoch', r.wait_max), 0) FROM recent r
        UNION ALL
        SELECT 'pgqueue_longest_run_seconds', 'gauge', 'Longest time from lease to archive, of what was archived in the last five minutes.',
               jsonb_build_object('queue', r.queue), coalesce(date_part('epoch', r.run_max), 0) FROM recent r
        UNION ALL
        SELECT 'pgqueue_open_dispatches', 'gauge', 'Dispatches whose DAG run has not ended.', '{}', count(*)
          FROM messages.dispatch d CROSS JOIN reach r WHERE d.ended_at IS NULL AND (r.everything OR d.queue_name = ANY (r.queue_names))
        UNION ALL
        SELECT 'pgqueue_health_severity', 'gauge', '1 at the severity that the check of health() found, 0 at the others.',
               jsonb_build_object('check', h.check_name, 'severity', s.severity), max((h.severity = s.severity)::integer)
          FROM messages.health() h CROSS JOIN unnest(ARRAY['ok', 'warning', 'critical']) AS s (severity)
         GROUP BY h.check_name, s.severity) AS m (metric, kind, help, labels, value)
     -- In each part the metric is a constant, so that this is judged before anything is read for it.
     WHERE (metrics.names IS NULL OR m.metric = ANY (metrics.names)) AND m.value IS NOT NULL;
END $$;
COMMENT ON FUNCTION messages.metrics(integer, text[], text[]) IS
    'The metrics as Prometheus names them, one row for each series: for the named queues, or the oldest max_queues; all others, and a queue that is called other, are summed up as other. With names, only those metrics, for no more work than they need. PQ004: max_queues out of range.';
