-- Status: the numbers of queues, and which of them have work.
--
-- status counts the messages of a queue by state, up to a number, along an index; for more it takes the statistics of the planner.
-- Waiting consumers call ready_queues and closed_queues. workers returns which consumers have leases, and metrics the numbers of all
-- queues as Prometheus names them.
--
-- Tables: none.

CREATE OR REPLACE FUNCTION messages.status(queue_name text DEFAULT NULL, exact boolean DEFAULT false)
RETURNS SETOF messages.queue_status
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment      timestamptz := clock_timestamp();
    names       text[];
    count_up_to integer;
BEGIN
    IF status.queue_name IS NOT NULL THEN
        PERFORM messages.check_access(status.queue_name, 'observe');
    END IF;
    names := ARRAY(
        SELECT q.queue_name FROM messages.queue q
         WHERE (status.queue_name IS NULL OR q.queue_name = status.queue_name COLLATE "default")
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)));
    IF status.queue_name IS NOT NULL AND cardinality(names) = 0 THEN
        PERFORM messages.raise_unknown_queue(status.queue_name);
    END IF;
    IF status.exact THEN
        -- An exact count reads the whole table: let the planner choose how.
        PERFORM set_config(name, 'on', true) FROM unnest(ARRAY['enable_sort', 'enable_bitmapscan', 'enable_seqscan']) AS name;
        RETURN QUERY
        SELECT q.queue_name, q.paused, coalesce(m.depth, 0), coalesce(m.depth - m.leased - m.delayed, 0), coalesce(m.leased, 0),
               coalesce(m.delayed, 0), moment - m.oldest,
               (SELECT count(*) FROM messages.dead_message d WHERE d.queue_name = q.queue_name),
               (SELECT moment - u.finished_at FROM messages.maintenance_run u WHERE u.finished_at <= moment), NULL::bigint,
               CASE WHEN num_nonnulls(q.rate_limit, q.max_leased) > 0 THEN messages.limited_until(q, moment) END
          FROM messages.queue q
          LEFT JOIN (
            SELECT m.queue_name, count(*) AS depth, count(*) FILTER (WHERE m.lock_expires_at > moment) AS leased,
                   count(*) FILTER (WHERE m.visible_at > moment AND coalesce(m.lock_expires_at <= moment, true)) AS delayed,
                   min(greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END))
                       FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)) AS oldest
              FROM messages.message_rows m WHERE m.queue_name = ANY (names) GROUP BY m.queue_name) m ON m.queue_name = q.queue_name
         WHERE q.queue_name = ANY (names)
         ORDER BY q.queue_name;
        RETURN;
    END IF;
    -- A hundred thousand messages in all, but between 100 and 10,000 of each queue.
    count_up_to := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
    RETURN QUERY
    WITH counted AS MATERIALIZED (
        SELECT q.queue_name, q.paused, m.*, d.*,
               CASE WHEN num_nonnulls(q.rate_limit, q.max_leased) > 0 THEN messages.limited_until(q, moment) END AS limited_until
          FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT count(*) AS depth,
                   count(*) FILTER (WHERE walked.lock_expires_at > moment) AS leased,
                   count(*) FILTER (WHERE walked.visible_at > moment AND coalesce(walked.lock_expires_at <= moment, true)) AS delayed,
                   min(greatest(walked.visible_at, CASE WHEN walked.fair_key IS NOT NULL THEN walked.created_at END))
                       FILTER (WHERE walked.visible_at <= moment AND coalesce(walked.lock_expires_at <= moment, true)) AS oldest,
                   -- If the message after the last counted one is delayed, so is the rest of its lane: all of the rest counts as delayed.
                   (array_agg(walked.visible_at > moment))[count_up_to + 1] AS rest_is_delayed
              FROM (SELECT m.visible_at, m.lock_expires_at, m.fair_key, m.created_at FROM messages.message_rows m WHERE m.queue_name = q.queue_name
                     ORDER BY m.priority DESC, m.visible_at LIMIT count_up_to + 1) walked) m
         CROSS JOIN LATERAL (
            SELECT count(*) AS dead FROM (
                SELECT FROM messages.dead_message d WHERE d.queue_name = q.queue_name
                 ORDER BY d.archived_at LIMIT count_up_to + 1) walked) d
         WHERE q.queue_name = ANY (names)),
    known AS (
        SELECT c.*, greatest(c.depth, p.messages) - c.depth AS rest, greatest(c.dead, d.messages) AS all_dead,
               -- The count went through the highest priorities; the oldest may wait in a lower one.
               CASE WHEN c.depth <= count_up_to THEN c.oldest ELSE least(c.oldest, (
                   SELECT min(first.visible_at) FROM messages.lane p
                    CROSS JOIN LATERAL (
                       SELECT greatest(walked.visible_at, CASE WHEN walked.fair_key IS NOT NULL THEN walked.created_at END) AS visible_at FROM (
                           (SELECT m.visible_at, m.lock_expires_at, m.fair_key, m.created_at FROM messages.message_rows m
                             WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment
                             ORDER BY m.visible_at LIMIT count_up_to)
                           UNION ALL
                           -- If all of these are leased, read on from the mark, where the next lease looks.
                           (SELECT m.* FROM (SELECT messages.stored_time(p.mark, moment) AS begins OFFSET 0) marked
                             CROSS JOIN LATERAL (
                                SELECT m.visible_at, m.lock_expires_at, m.fair_key, m.created_at FROM messages.message_rows m
                                 WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at >= begins AND m.visible_at <= moment
                                 ORDER BY m.visible_at LIMIT count_up_to) m)) walked
                        WHERE coalesce(walked.lock_expires_at <= moment, true) LIMIT 1) first
                    WHERE p.queue_name = c.queue_name)) END AS oldest_of_all
          FROM counted c
         CROSS JOIN LATERAL (SELECT CASE WHEN c.depth > count_up_to THEN messages.planned_messages('messages.message_rows', c.queue_name) END AS messages) p
         CROSS JOIN LATERAL (SELECT CASE WHEN c.dead > count_up_to THEN messages.planned_messages('messages.dead_message', c.queue_name) END AS messages) d)
    SELECT k.queue_name, k.paused, k.depth + k.rest, k.depth - k.leased - k.delayed + CASE WHEN k.rest_is_delayed THEN 0 ELSE k.rest END,
           k.leased, k.delayed + CASE WHEN k.rest_is_delayed THEN k.rest ELSE 0 END, moment - k.oldest_of_all, k.all_dead,
           (SELECT moment - u.finished_at FROM messages.maintenance_run u WHERE u.finished_at <= moment), count_up_to::bigint, k.limited_until
      FROM known k ORDER BY k.queue_name;
END $$;
COMMENT ON FUNCTION messages.status IS
    'Each queue: depth = ready + leased + delayed; age of the oldest ready message; open dead messages; time since the last maintenance run. Counts up to 10,000 messages of a queue, which is counted_up_to (fewer if there are more than ten queues: 100,000 in all, but at least 100 of each). Where depth or dead is larger, there is more than that, and the number is that of the planner if it knows more. With exact, counts everything. limited_until: when rate_limit and max_leased allow the next lease, if no lease ends or is extended before; NULL if they allow one now. Without a name, the queues that this login may observe. PQ001: unknown queue.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.planned_messages(relation regclass, queue_name text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (c.reltuples / greatest(c.relpages, 1) * (pg_relation_size(c.oid) / current_setting('block_size')::integer)
            * s.most_common_freqs[array_position(s.most_common_vals::text::text[], planned_messages.queue_name)])::bigint
      FROM pg_class c JOIN pg_stats s ON s.schemaname = 'messages' AND s.tablename = c.relname AND s.attname = 'queue_name'
     WHERE c.oid = planned_messages.relation AND c.reltuples > 0
$$;
COMMENT ON FUNCTION messages.planned_messages IS
    'How many messages of a queue messages.message_rows or messages.dead_message has according to the statistics of the planner, which the last ANALYZE wrote; NULL if they do not know the queue.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.ready_queues(
    queue_names text[]  DEFAULT NULL,
    count_up_to integer DEFAULT 1000
)
RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval, topics text[], oldest_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('count_up_to', count_up_to, 0, 2147483647);
    RETURN QUERY
    WITH asked AS MATERIALIZED (           -- one time for all lanes, in any plan
        SELECT clock_timestamp() AS moment,
               -- Reading a mark locks it until the commit. Without marks the query walks over all leased messages.
               ready_queues.queue_names IS NOT NULL OR NOT EXISTS (SELECT FROM messages.lane l WHERE l.mark IS NOT NULL OFFSET 900) AS by_mark)
    SELECT q.queue_name, least(sum(found.ready), free.leases, min(rate.leases))::bigint,
           moment - min(found.oldest),
           -- No notification follows when a rate_limit allows the next lease, or when the lease of another consumer ends.
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
     -- Here the mark is read once and bounds the walk; in the condition below, being volatile, it would filter each message.
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
      -- Without OFFSET, rate_left() would be called for each lane, whatever the condition.
      LEFT JOIN LATERAL (SELECT r.leases, r.next_at FROM messages.rate_left(q, moment) r WHERE q.rate_limit IS NOT NULL OFFSET 0) rate ON true
     WHERE (queue_names IS NULL OR q.queue_name = ANY (queue_names)) AND NOT q.paused
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY q.queue_name, moment, free.leases
    HAVING sum(found.ready) > 0 OR min(coming.visible_at) IS NOT NULL
        OR EXISTS (SELECT FROM messages.timer t WHERE t.queue_name = q.queue_name AND t.at > moment - interval '5 s');
END $$;
COMMENT ON FUNCTION messages.ready_queues IS
    'The queues that are not paused and have a message to lease now (ready counts up to count_up_to per priority, and no more than max_leased and rate_limit allow), or later (next_in: when a delay or a lease ends, or when rate_limit allows the next lease), with at most twenty topics of the messages that were counted, and the time since which the oldest has been ready. Unknown names are left out: closed_queues() returns those. Changes nothing: a waiting consumer calls scan(). PQ004: a negative number.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.closed_queues(queue_names text[]) RETURNS TABLE (queue_name text, paused boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT given.name, q.queue_name IS NOT NULL
      FROM unnest(queue_names) WITH ORDINALITY AS given (name, place)
      LEFT JOIN messages.queue q ON q.queue_name = given.name
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     WHERE q.queue_name IS NULL OR q.paused
     ORDER BY place
$$;
COMMENT ON FUNCTION messages.closed_queues IS
    'The names among these for which nobody should wait: there is no such queue, or none that this login may observe, or it is paused.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.workers(queue_name text DEFAULT NULL, period interval DEFAULT '5 minutes')
RETURNS TABLE (worker text, worker_queue text, leased bigint, leased_since timestamptz, lease_ends_at timestamptz, finished bigint, dead bigint,
               per_second double precision, run_avg interval, last_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment      timestamptz := clock_timestamp();
    names       text[];
    count_up_to bigint;
BEGIN
    PERFORM messages.check_duration('period', workers.period, '1 second', '1 day', required => true);
    PERFORM messages.check_queue(workers.queue_name, 'observe') WHERE workers.queue_name IS NOT NULL;
    names := ARRAY(
        SELECT q.queue_name FROM messages.queue q
         WHERE (workers.queue_name IS NULL OR q.queue_name = workers.queue_name COLLATE "default")
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)));
    -- Each leased message is in the ids of a timer. A timer without a token mostly belongs to messages that expire or are delayed.
    count_up_to := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
    RETURN QUERY
    WITH held AS (
        SELECT m.locked_by, t.queue_name AS name, count(DISTINCT m.id) AS leased, min(m.leased_at) AS leased_since,
               min(m.lock_expires_at) AS lease_ends_at, max(m.leased_at) AS last_at
          FROM unnest(names) AS n (name)
         CROSS JOIN LATERAL (
            SELECT t.queue_name, t.lock_token, one.id
              FROM (SELECT t.* FROM messages.timer t WHERE t.queue_name = n.name ORDER BY t.at LIMIT count_up_to) t
             CROSS JOIN LATERAL unnest(CASE WHEN t.lock_token IS NULL THEN t.ids[:10] ELSE t.ids END) AS one (id) LIMIT count_up_to) t
          JOIN messages.message_rows m ON m.id = t.id AND m.lock_token IS NOT DISTINCT FROM t.lock_token
         WHERE m.lock_expires_at > moment
         GROUP BY 1, 2),
    done AS (
        SELECT a.handled_by, a.queue_name AS name, count(*) AS finished, count(*) FILTER (WHERE a.result NOT IN ('success', 'cancelled')) AS dead,
               avg(a.archived_at - a.leased_at) AS run_avg, max(a.archived_at) AS last_at
          FROM messages.archive_rows a
         WHERE a.archived_at > moment - workers.period AND a.archived_at <= moment + interval '1 minute' AND a.handled_by IS NOT NULL
           AND (workers.queue_name IS NULL OR a.queue_name = workers.queue_name)
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
         GROUP BY 1, 2)
    SELECT coalesce(h.locked_by, d.handled_by), coalesce(h.name, d.name), coalesce(h.leased, 0), h.leased_since, h.lease_ends_at,
           coalesce(d.finished, 0), coalesce(d.dead, 0), coalesce(d.finished, 0) / date_part('epoch', workers.period), d.run_avg,
           greatest(h.last_at, d.last_at)
      FROM held h FULL JOIN done d ON d.handled_by = h.locked_by AND d.name = h.name
     ORDER BY 3 DESC, 6 DESC, 1, 2;
END $$;
COMMENT ON FUNCTION messages.workers IS
    'Who leases now or finished something within the period, by the name that each gave itself: how many messages it holds, since when and until when, how many it finished, and how many of those died. Reads the timers of a queue that are due first, up to 10,000 of their messages (fewer if there are more than ten queues), so it may miss leases that end later. PQ001: unknown queue; PQ004: a period of less than a second or more than a day.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.oldest_leases() RETURNS TABLE (queue_name text, leased_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    names   text[]      := ARRAY(SELECT q.queue_name FROM messages.queue q
                                  WHERE (SELECT r.everything FROM messages.session_reach r)
                                     OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r));
    most bigint      := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
BEGIN
    RETURN QUERY
    SELECT n.name, min(m.leased_at)
      FROM unnest(names) AS n (name)
     CROSS JOIN LATERAL (SELECT t.lock_token, t.ids FROM messages.timer t WHERE t.queue_name = n.name ORDER BY t.at LIMIT most) t
     -- All messages of one token were leased together. A timer without a token mostly belongs to a delay.
     CROSS JOIN LATERAL (
        SELECT m.leased_at FROM unnest(CASE WHEN t.lock_token IS NULL THEN t.ids[:10] ELSE t.ids END) AS one (id)
          JOIN messages.message_rows m ON m.id = one.id
         WHERE m.lock_expires_at > moment AND m.lock_token IS NOT DISTINCT FROM t.lock_token
         LIMIT 1) m
     GROUP BY n.name;
END $$;
COMMENT ON FUNCTION messages.oldest_leases IS
    'When the longest-held lease of each queue was taken, for the queues that have a lease and that this login may observe. Reads the 10,000 timers of a queue that are due first, or fewer if there are more than ten queues.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.metrics(
    max_queues  integer DEFAULT 200,
    queue_names text[]  DEFAULT NULL,
    names       text[]  DEFAULT NULL
) RETURNS TABLE (metric text, kind text, help text, labels jsonb, value double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    shown text[];
BEGIN
    PERFORM messages.check_number('max_queues', metrics.max_queues, 0, 10000, required => true);
    -- Show the oldest queues, not the busiest: the queues with series of their own must not change from one call to the next.
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
               count(*) AS queues, max(s.maintenance_age) AS maintenance_age
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
        SELECT 'pgqueue_dead_messages', 'gauge', 'Open dead messages.', jsonb_build_object('queue', l.queue), l.dead FROM level l
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
        SELECT 'pgqueue_maintenance_age_seconds', 'gauge', 'Time since the last maintenance run.', '{}', date_part('epoch', max(l.maintenance_age)) FROM level l
        UNION ALL
        SELECT 'pgqueue_oldest_lease_age_seconds', 'gauge', 'How long the lease that is held for longest has been held; none if nothing is leased.',
               jsonb_build_object('queue', CASE WHEN o.queue_name = ANY (shown) THEN o.queue_name ELSE 'other' END),
               date_part('epoch', clock_timestamp() - min(o.leased_at))
          FROM messages.oldest_leases() o GROUP BY 4
        UNION ALL
        SELECT 'pgqueue_published_messages_total', 'counter', 'Messages published, as of the maintenance run before the last.', jsonb_build_object('queue', t.queue), t.arrivals FROM total t
        UNION ALL
        SELECT 'pgqueue_finished_messages_total', 'counter', 'Messages archived by result, as of the maintenance run before the last.', jsonb_build_object('queue', t.queue, 'result', v.result), v.number
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
     -- In each part the metric is a constant, so this condition is checked before the part reads anything.
     WHERE (metrics.names IS NULL OR m.metric = ANY (metrics.names)) AND m.value IS NOT NULL;
END $$;
COMMENT ON FUNCTION messages.metrics IS
    'The metrics as Prometheus names them, one row for each series: for the named queues, or the oldest max_queues; all others, and a queue that is called other, are summed up as other. With names, only those metrics, for no more work than they need. PQ004: max_queues out of range.'
    ' [for: observer]';
