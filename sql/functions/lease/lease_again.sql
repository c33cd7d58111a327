CREATE OR REPLACE FUNCTION messages.lease_again(
    queue_name text, INOUT wanted integer, tries integer, consumes boolean, OUT moment timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    policy  messages.queue;
    limited boolean;
    again   boolean;
    -- Messages that a look frees or puts behind stay locked until the commit, and the transaction of a consumer lasts as long as its work.
    most    integer := CASE WHEN consumes THEN least(10 * wanted, 1000) ELSE 1000 END;
    look_at integer;
    ready   integer;
    grouped tid[];
    heads   tid[];
BEGIN
    moment := clock_timestamp();
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = lease_again.queue_name COLLATE "default";
    PERFORM messages.check_lease(lease_again.queue_name, policy.paused, wanted, NULL);
    limited := policy.rate_limit IS NOT NULL;
    again := messages.look(lease_again.queue_name, most);
    IF policy.max_leased IS NOT NULL AND tries = 1 AND NOT consumes THEN
        wanted := least(wanted, messages.leases_left(lease_again.queue_name, policy.max_leased));
        again := true;
    END IF;
    IF limited THEN
        wanted := least(wanted, (SELECT r.leases FROM messages.rate_left(policy, clock_timestamp()) r));
    END IF;
    IF wanted > 0 AND (limited OR NOT again) THEN
        -- Messages that were put behind others of their groups stood in the way of these, or nobody made the mark of their lane. There may
        -- be thousands more, which this puts behind, too: at each try ten times as many.
        look_at := greatest(CASE WHEN limited THEN wanted END, least(10 ^ (tries - 1), most));
        SELECT count(*), array_agg(m.tid) FILTER (WHERE m.group_key IS NOT NULL) INTO ready, grouped FROM (
            SELECT m.* FROM (SELECT l.priority, messages.stored_time(l.mark, lease_again.moment) AS begins FROM messages.lane l
                              WHERE l.queue_name = lease_again.queue_name COLLATE "default" ORDER BY l.priority DESC OFFSET 0) lane
             CROSS JOIN LATERAL (
                SELECT m.ctid AS tid, m.group_key FROM messages.message_rows m
                 WHERE m.queue_name = lease_again.queue_name COLLATE "default" AND m.priority = lane.priority
                   AND m.visible_at >= lane.begins AND m.visible_at <= lease_again.moment
                   AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > lease_again.moment)
                   AND (m.group_key IS NULL OR pg_try_advisory_xact_lock(policy.lock_key, hashtext(m.group_key) & 1023))
                 ORDER BY m.visible_at LIMIT look_at FOR UPDATE SKIP LOCKED) m
             LIMIT look_at) m;
        again := ready > 0;
        IF grouped IS NOT NULL AND (limited OR tries > 1) THEN
            heads := messages.group_heads(lease_again.queue_name, grouped);
            ready := ready - (SELECT count(*) FROM unnest(grouped) AS one (tid) WHERE (one.tid = ANY (heads)) IS NOT TRUE);
        END IF;
    END IF;
    -- Ten tries at most, even if more becomes ready meanwhile.
    IF NOT again OR tries >= 10 THEN
        wanted := 0;
    ELSIF limited AND wanted > 0 THEN
        -- Only what will be leased uses up the rate.
        IF ready > 0 THEN
            SELECT s.wanted, s.moment INTO wanted, moment FROM messages.spend_rate(policy, least(wanted, ready)) s;
        ELSE
            -- All of them were put behind others of their groups just now; others may be ready after them.
            SELECT a.wanted, a.moment INTO wanted, moment FROM messages.lease_again(lease_again.queue_name, wanted, tries + 1, consumes) a;
        END IF;
        RETURN;
    END IF;
    moment := clock_timestamp();
END $$;
COMMENT ON FUNCTION messages.lease_again(text, integer, integer, boolean) IS
    'For how many messages a lease that found fewer than it wanted should try again, and the time at which that try begins. It should if a look may have made some ready, if others are ready behind messages of groups, of which each try puts ten times as many behind as the one before, and at the first try for as many as a max_leased allows; under a rate_limit for as many as rate_left allows, which this call uses up. Errors as in lease.';
