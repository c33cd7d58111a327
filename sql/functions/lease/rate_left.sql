CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz, OUT leases bigint, OUT next_at timestamptz, OUT spent bigint, OUT step bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    bigint  := extract(epoch FROM moment) * 1000000;
    broken boolean := policy.broken_since IS NOT NULL;
    room   bigint;
BEGIN
    IF policy.rate_limit IS NULL AND NOT broken THEN
        RETURN;
    END IF;
    -- Each pause of a broken queue is as long as it has been broken: they double.
    step := CASE WHEN broken THEN extract(epoch FROM greatest(interval '1 ms', policy.backoff_first, least(policy.backoff_max, moment - policy.broken_since))) * 1000000
                 ELSE ceil(extract(epoch FROM policy.rate_period) * 1000000 / policy.rate_limit) END;
    room := CASE WHEN broken THEN 1 ELSE policy.rate_burst END * step;
    -- Without a mark no lease is left; the upkeep makes the mark again.
    spent := CASE WHEN policy.rate_mark IS NULL THEN now + room ELSE coalesce(pg_sequence_last_value(policy.rate_mark), 0) END;
    -- A time that lies further ahead was stored before the clock went back, or before the policy changed.
    IF spent NOT BETWEEN now AND now + room THEN
        spent := now;
    END IF;
    leases := (now + room - spent) / step;
    next_at := 'epoch'::timestamptz + (spent + (leases + 1) * step - room) * interval '1 us';
    IF broken AND EXISTS (SELECT FROM messages.message_rows m WHERE m.id = pg_sequence_last_value(policy.probe) AND m.lock_expires_at > moment) THEN
        leases := 0;
        next_at := greatest(next_at, moment + interval '1 s');
    END IF;
END $$;
COMMENT ON FUNCTION messages.rate_left(messages.queue, timestamptz) IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, or, while it is broken, one after each pause if nobody holds the last; NULL for any number; and when it allows one more than these. Each uses up a step, in microseconds: spent is the time up to which the rate is used up.';
