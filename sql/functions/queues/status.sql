CREATE OR REPLACE FUNCTION messages.status(queue_name text DEFAULT NULL, exact boolean DEFAULT false)
RETURNS SETOF messages.queue_status
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
SET jit = off -- the costs of what is switched off would have it compile for a second
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
        -- This reads the whole table, for which the planner knows the best way.
        PERFORM set_config(name, 'on', true) FROM unnest(ARRAY['enable_sort', 'enable_bitmapscan', 'enable_seqscan']) AS name;
        RETURN QUERY
        SELECT q.queue_name, q.paused, coalesce(m.depth, 0), coalesce(m.depth - m.leased - m.delayed, 0), coalesce(m.leased, 0),
               coalesce(m.delayed, 0), moment - m.oldest,
               (SELECT count(*) FROM messages.dead_message d WHERE d.queue_name = q.queue_name),
               (SELECT moment - u.finished_at FROM messages.upkeep_run u WHERE u.finished_at <= moment), NULL::bigint,
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
                   -- What comes after the last that is counted is delayed, if that one is.
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
                           -- If all of these are leased: from the mark on, where the next lease looks.
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
           (SELECT moment - u.finished_at FROM messages.upkeep_run u WHERE u.finished_at <= moment), count_up_to::bigint, k.limited_until
      FROM known k ORDER BY k.queue_name;
END $$;
COMMENT ON FUNCTION messages.status(text, boolean) IS
    'Each queue: depth = ready + leased + delayed; age of the oldest ready message; dead messages without a remedy; time since the last upkeep. Counts up to 10,000 messages of a queue, which is counted_up_to (fewer if there are more than ten queues: 100,000 in all, but at least 100 of each). Where depth or dead is larger, there is more than that, and the number is that of the planner if it knows more. With exact, counts everything. limited_until: when rate_limit and max_leased allow the next lease, if no lease ends or is extended before; NULL if they allow one now. Without a name, the queues that this login may observe. PQ001: unknown queue.';
