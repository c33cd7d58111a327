CREATE OR REPLACE FUNCTION messages.spend_rate(policy messages.queue, INOUT wanted integer, OUT moment timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
DECLARE
    rate record;
BEGIN
    -- The error below rolls back the subtransaction of this block. That ends the lock, so that nobody holds it from one statement to the
    -- next; what was stored in the sequence stays.
    PERFORM pg_advisory_xact_lock(policy.lock_key, -2);
    moment := clock_timestamp();
    rate := messages.rate_left(policy, moment);
    wanted := least(wanted, rate.leases);
    IF wanted > 0 THEN
        PERFORM messages.store_time(policy.rate_mark, rate.spent + wanted * rate.step);
    END IF;
    RAISE EXCEPTION 'done';
EXCEPTION
    WHEN raise_exception THEN
        NULL;
    WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('the rate_limit of queue %L', policy.queue_name));
END $$;
COMMENT ON FUNCTION messages.spend_rate(messages.queue, integer) IS
    'Uses up what the rate_limit of a queue allows, but no more than is wanted, and returns how many messages may be leased, and at which time. What is used up stays used up, even if the transaction rolls back. PQ016: another session has been in the middle of this for more than three seconds.';
