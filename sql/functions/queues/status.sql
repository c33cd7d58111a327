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
    count_up_to bigint;
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
        -- This reads the whole table, and there the planner knows best.
        PERFORM set_config(name, 'on', true) FROM unnest(ARRAY['enable_sort', 'enable_bitmapscan', 'enable_seqscan']) AS name;
        RETURN QUERY
        SELECT q.queue_name, q.paused, coalesce(m.depth, 0), coalesce(m.depth - m.leased - m.delayed, 0), coalesce(m.leased, 0),
               coalesce(m.delayed, 0), moment - m.oldest,
               (SELECT count(*) FROM messages.dead_message d WHERE d.queue_name = q.queue_name),
               (SELECT moment - u.finished_at FROM messages.upkeep_run u), 0::bigint, 0::bigint
          FROM messages.queue q
          LEFT JOIN (
            SELECT m.queue_name, count(*) AS depth, count(*) FILTER (WHERE m.lock_expires_at > moment) AS leased,
                   count(*) FILTER (WHERE m.visible_at > moment AND coalesce(m.lock_expires_at <= moment, true)) AS delayed,
                   min(m.visible_at) FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)) AS oldest
              FROM messages.message_rows m WHERE m.queue_name = ANY (names) GROUP BY m.queue_name) m ON m.queue_name = q.queue_name
         WHERE q.queue_name = ANY (names)
         ORDER BY q.queue_name;
        RETURN;
    END IF;
    -- A hundred thousand messages in all, but between 100 and 10,000 of each queue.
    count_up_to := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
    RETURN QUERY
    WITH counted AS MATERIALIZED (
        SELECT q.queue_name, q.paused, m.*, d.*
          FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT count(*) AS depth,
                   count(*) FILTER (WHERE walked.lock_expires_at > moment) AS leased,
                   count(*) FILTER (WHERE walked.visible_at > moment AND coalesce(walked.lock_expires_at <= moment, true)) AS delayed,
                   min(walked.visible_at) FILTER (WHERE walked.visible_at <= moment AND coalesce(walked.lock_expires_at <= moment, true)) AS oldest
              FROM (SELECT m.visible_at, m.lock_expires_at FROM messages.message_rows m WHERE m.queue_name = q.queue_name
                     ORDER BY m.priority DESC, m.visible_at LIMIT count_up_to + 1) walked) m
         CROSS JOIN LATERAL (
            SELECT count(*) AS dead FROM (
                SELECT FROM messages.dead_message d WHERE d.queue_name = q.queue_name
                 ORDER BY d.archived_at LIMIT count_up_to + 1) walked) d
         WHERE q.queue_name = ANY (names)),
    known AS (
        SELECT c.queue_name, c.paused, greatest(c.depth, m.messages) AS depth, greatest(c.leased, m.leased) AS leased,
               greatest(c.delayed, m.delayed) AS delayed, greatest(c.dead, d.messages) AS dead,
               coalesce(m.margin, 0) AS depth_margin, coalesce(d.margin, 0) AS dead_margin,
               -- The count went through the highest priorities; the oldest may wait in a lower one.
               CASE WHEN m.messages IS NULL THEN c.oldest ELSE least(c.oldest, (
                   SELECT min(first.visible_at) FROM messages.lane p
                    CROSS JOIN LATERAL (
                       SELECT walked.visible_at FROM (
                           SELECT m.visible_at, m.lock_expires_at FROM messages.message_rows m
                            WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment
                            ORDER BY m.visible_at LIMIT count_up_to) walked
                        WHERE coalesce(walked.lock_expires_at <= moment, true) LIMIT 1) first
                    WHERE p.queue_name = c.queue_name)) END AS oldest
          FROM counted c
          LEFT JOIN messages.estimate_messages('messages.message_rows', ARRAY(SELECT c.queue_name FROM counted c WHERE c.depth > count_up_to), moment) m
            ON m.queue_name = c.queue_name
          LEFT JOIN messages.estimate_messages('messages.dead_message', ARRAY(SELECT c.queue_name FROM counted c WHERE c.dead > count_up_to), moment) d
            ON d.queue_name = c.queue_name)
    SELECT k.queue_name, k.paused, greatest(k.depth, k.leased + k.delayed), greatest(k.depth - k.leased - k.delayed, 0),
           k.leased, k.delayed, moment - k.oldest, k.dead, (SELECT moment - u.finished_at FROM messages.upkeep_run u),
           k.depth_margin, k.dead_margin
      FROM known k ORDER BY k.queue_name;
END $$;
COMMENT ON FUNCTION messages.status(text, boolean) IS
    'Each queue: depth = ready + leased + delayed; age of the oldest ready message; dead messages without a remedy; time since the last upkeep. Counts up to 10,000 messages of a queue (fewer if there are more than ten queues: 100,000 in all, but at least 100 of each) and beyond that estimates from a sample of the table: depth_margin and dead_margin say how far depth and dead may be off, in 95 of 100 cases; 0: they were counted. With exact, counts everything. Without a name, the queues that this login may observe. PQ001: unknown queue.';
