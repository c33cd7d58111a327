CREATE OR REPLACE FUNCTION messages.spend_group_rates(queue_name text, keys text[], leased text[], moment timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on
AS $$
#variable_conflict use_column
BEGIN
    WITH used AS MATERIALIZED (
        SELECT b.group_key, b.spent + coalesce(n.number, 0) * b.step AS spent, n.number, next.id, b.wakes_at AS known,
               CASE WHEN next.id IS NOT NULL THEN b.next_at END AS wakes_at
          FROM messages.group_buckets(spend_group_rates.queue_name, keys, moment) b
          LEFT JOIN (SELECT one AS key, count(*) AS number FROM unnest(leased) one GROUP BY one) n ON n.key = b.group_key
          -- If that was the last lease that the rate allowed, a timer makes the next message ready.
          LEFT JOIN LATERAL (
            SELECT m.id FROM messages.message_rows m
             WHERE b.leases <= coalesce(n.number, 0)
               AND m.queue_name = spend_group_rates.queue_name COLLATE "default" AND m.group_key = b.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next ON true),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, ids)
        SELECT spend_group_rates.queue_name, u.wakes_at, ARRAY[u.id] FROM used u WHERE u.wakes_at <> coalesce(u.known, '-infinity'))
    INSERT INTO messages.group_rate (queue_name, group_key, spent, wakes_at)
    SELECT spend_group_rates.queue_name, u.group_key, u.spent, u.wakes_at FROM used u
     WHERE u.number > 0 OR u.wakes_at <> coalesce(u.known, '-infinity')
    ON CONFLICT (queue_name, group_key) DO UPDATE SET spent = excluded.spent, wakes_at = excluded.wakes_at;
END $$;
COMMENT ON FUNCTION messages.spend_group_rates(text, text[], text[], timestamptz) IS
    'Uses up the rate_limit_per_group of a queue for the groups of the messages that are leased, under the locks of all of these groups. Where it allows no more, and others wait, a timer makes the next ready when it does.';
