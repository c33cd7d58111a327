CREATE OR REPLACE FUNCTION messages.oldest_leases() RETURNS TABLE (queue_name text, leased_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    names   text[]      := ARRAY(SELECT q.queue_name FROM messages.queue q
                                  WHERE (SELECT r.everything FROM messages.session_reach r)
                                     OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r));
    look_at bigint      := greatest(100, least(10000, 100000 / greatest(1, cardinality(names))));
BEGIN
    RETURN QUERY
    SELECT n.name, min(m.leased_at)
      FROM unnest(names) AS n (name)
     CROSS JOIN LATERAL (SELECT t.lock_token, t.ids FROM messages.timer t WHERE t.queue_name = n.name ORDER BY t.at LIMIT look_at) t
     -- All messages of one token were leased together. A timer without a token is mostly that of a delay.
     CROSS JOIN LATERAL (
        SELECT m.leased_at FROM unnest(CASE WHEN t.lock_token IS NULL THEN t.ids[:10] ELSE t.ids END) AS one (id)
          JOIN messages.message_rows m ON m.id = one.id
         WHERE m.lock_expires_at > moment AND m.lock_token IS NOT DISTINCT FROM t.lock_token
         LIMIT 1) m
     GROUP BY n.name;
END $$;
COMMENT ON FUNCTION messages.oldest_leases() IS
    'When the longest-held lease of each queue was taken, of the queues that have one and that this login may observe. Looks at the 10,000 timers of a queue that end first, at fewer where there are many queues.';
