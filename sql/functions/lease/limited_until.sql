CREATE OR REPLACE FUNCTION messages.limited_until(policy messages.queue, moment timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN greatest(
        (SELECT r.next_at FROM messages.rate_left(policy, moment) r WHERE policy.rate_limit IS NOT NULL AND r.leases = 0),
        -- Where the limit was lowered, several leases have to end before the next one.
        (SELECT m.lock_expires_at FROM messages.message_rows m
          WHERE policy.max_leased IS NOT NULL
            AND m.id = ANY (ARRAY(SELECT unnest(t.ids) FROM messages.timer t WHERE t.queue_name = policy.queue_name))
            AND m.lock_expires_at > moment
          ORDER BY m.lock_expires_at DESC OFFSET policy.max_leased - 1 LIMIT 1));
END $$;
COMMENT ON FUNCTION messages.limited_until(messages.queue, timestamptz) IS
    'When the rate_limit and the max_leased of a queue allow the next lease, if no lease is extended or ended before; NULL if they allow one at that time.';
