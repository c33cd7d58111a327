CREATE OR REPLACE FUNCTION messages.group_buckets(queue_name text, keys text[], moment timestamptz)
RETURNS TABLE (group_key text, spent timestamptz, leases bigint, next_at timestamptz, step interval, wakes_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT g.key, b.spent, b.leases, b.next_at, b.step, r.wakes_at
      FROM messages.queue q CROSS JOIN unnest(keys) WITH ORDINALITY AS g (key, number)
      -- Where snapshots last, one that the upkeep has deleted is still there next to a new one.
      LEFT JOIN LATERAL (
        SELECT r.* FROM messages.group_rate r
         WHERE r.queue_name = q.queue_name AND r.group_key = g.key COLLATE "default" ORDER BY r.spent DESC LIMIT 1) r ON true
     CROSS JOIN LATERAL messages.token_bucket(coalesce(r.spent, '-infinity'), moment, q.rate_limit_per_group, q.rate_period, q.rate_burst) b
     WHERE q.queue_name = group_buckets.queue_name COLLATE "default" AND q.rate_limit_per_group IS NOT NULL
     ORDER BY g.number;
END $$;
COMMENT ON FUNCTION messages.group_buckets(text, text[], timestamptz) IS
    'What the rate_limit_per_group of a queue allows in each of these groups at a time, in their order: see token_bucket. Returns nothing if the queue has none.';
