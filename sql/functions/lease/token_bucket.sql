CREATE OR REPLACE FUNCTION messages.token_bucket(
    INOUT spent timestamptz, moment timestamptz, number integer, period interval, burst integer,
    OUT leases bigint, OUT next_at timestamptz, OUT step interval
)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room interval;
BEGIN
    step := ceil(extract(epoch FROM period) * 1000000 / number) * interval '1 us';
    room := burst * step;
    -- A time that lies further ahead than it can was stored before the clock went back, or before the policy changed.
    IF spent NOT BETWEEN moment AND moment + room THEN
        spent := moment;
    END IF;
    spent := coalesce(spent, moment + room);
    leases := floor(extract(epoch FROM moment + room - spent) / extract(epoch FROM step));
    next_at := spent + (leases + 1) * step - room;
END $$;
COMMENT ON FUNCTION messages.token_bucket(timestamptz, timestamptz, integer, interval, integer) IS
    'How many leases a rate allows at a time, and when it allows one more than these: so many in a period, and a burst after a pause. It is used up to spent, NULL for all of it, and each lease uses up one step more.';
