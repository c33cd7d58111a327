CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz, OUT leases bigint, OUT next_at timestamptz, OUT spent bigint, OUT step bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now  bigint := extract(epoch FROM moment) * 1000000;
    room bigint;
BEGIN
    step := ceil(extract(epoch FROM policy.rate_period) * 1000000 / policy.rate_limit);
    room := policy.rate_burst * step;
    -- Without a mark no lease is left; the upkeep makes the mark again.
    spent := CASE WHEN policy.rate_mark IS NULL THEN now + room ELSE coalesce(pg_sequence_last_value(policy.rate_mark), 0) END;
    -- A time that lies further ahead was stored before the clock went back, or before the policy changed.
    IF spent NOT BETWEEN now AND now + room THEN
        spent := now;
    END IF;
    leases := (now + room - spent) / step;
    next_at := 'epoch'::timestamptz + (spent + (leases + 1) * step - room) * interval '1 us';
END $$;
COMMENT ON FUNCTION messages.rate_left(messages.queue, timestamptz) IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, and when it allows one more than these. Each uses up a step, in microseconds: spent is the time up to which the rate is used up.';
