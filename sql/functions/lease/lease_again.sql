CREATE OR REPLACE FUNCTION messages.lease_again(
    queue_name text, wanted integer, tries integer, consumes boolean, pattern text
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    policy messages.queue;
    again  boolean;
BEGIN
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = lease_again.queue_name COLLATE "default";
    PERFORM messages.check_lease(lease_again.queue_name, policy.paused, wanted, NULL);
    -- Messages that a look frees stay locked until the commit, and the transaction of a consumer lasts as long as its work.
    again := messages.look(lease_again.queue_name, CASE WHEN consumes THEN least(10 * wanted, 1000) ELSE 1000 END);
    IF policy.max_leased IS NOT NULL AND tries = 1 AND NOT consumes THEN
        RETURN least(wanted, messages.leases_left(lease_again.queue_name, policy.max_leased));
    END IF;
    IF NOT again THEN
        -- Messages that were put behind others of their groups stood in the way of these, or nobody made the mark of their lane.
        PERFORM FROM (SELECT l.priority, messages.stored_time(l.mark, moment) AS begins FROM messages.lane l
                       WHERE l.queue_name = lease_again.queue_name COLLATE "default" OFFSET 0) lane
          CROSS JOIN LATERAL (
             SELECT FROM messages.message_rows m
              WHERE m.queue_name = lease_again.queue_name COLLATE "default" AND m.priority = lane.priority
                AND m.visible_at >= lane.begins AND m.visible_at <= moment
                AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                AND (m.group_key IS NULL OR pg_try_advisory_xact_lock(policy.lock_key, hashtext(m.group_key) & 1023))
                AND (lease_again.pattern IS NULL OR '.' || m.topic ~ lease_again.pattern)
              ORDER BY m.visible_at LIMIT 1 FOR UPDATE SKIP LOCKED) m
          LIMIT 1;
        again := FOUND;
    END IF;
    -- Ten tries at most, even if more becomes ready meanwhile.
    RETURN CASE WHEN again AND tries < 10 THEN wanted ELSE 0 END;
END $$;
COMMENT ON FUNCTION messages.lease_again(text, integer, integer, boolean, text) IS
    'Whether a lease that found less than was wanted should try again, and for how many messages: if a look was due, if something is ready behind messages of groups, or, at the first try, as a max_leased allows. Errors as in lease.';
