CREATE OR REPLACE FUNCTION messages.prepare_lease(queue_name text, INOUT wanted integer, tried timestamptz, consumes boolean DEFAULT false, OUT moment timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    policy messages.queue;
    freed  boolean;
BEGIN
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = prepare_lease.queue_name COLLATE "default";
    PERFORM messages.check_lease(prepare_lease.queue_name, policy.paused, wanted, NULL);
    -- Only what was due before that, lest a lease of a millisecond that this call took is given back to it.
    freed := messages.look(prepare_lease.queue_name, wanted, coalesce(tried, clock_timestamp()));
    IF tried IS NOT NULL AND NOT freed THEN
        wanted := 0;
        RETURN;
    END IF;
    IF policy.max_leased IS NOT NULL AND NOT consumes THEN
        wanted := least(wanted, messages.leases_left(prepare_lease.queue_name, policy.max_leased));
    END IF;
    moment := clock_timestamp();
    IF policy.rate_limit IS NOT NULL AND wanted > 0 THEN
        -- Only what will be leased uses up the rate. This locks it, so that nobody else takes it.
        wanted := least(wanted, (messages.rate_left(policy, moment)).leases);
        wanted := coalesce(cardinality((messages.take_first(prepare_lease.queue_name, wanted, moment)).ids), 0);
        SELECT s.wanted, s.moment INTO wanted, moment FROM messages.spend_rate(policy, wanted) s;
    END IF;
END $$;
COMMENT ON FUNCTION messages.prepare_lease(text, integer, timestamptz, boolean) IS
    'For how many messages a lease should try again that found fewer than it wanted, or that has not tried: 0 if it has tried, at this time, and a look frees nothing; no more than max_leased and rate_limit allow, which this uses up; and the time at which these leases begin. Errors as in lease.';
