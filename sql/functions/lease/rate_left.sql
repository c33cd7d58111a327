CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz,
    OUT leases bigint, OUT next_at timestamptz, OUT spent bigint, OUT step bigint, OUT pause bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now  bigint := extract(epoch FROM moment) * 1000000;
    room bigint;
    due  bigint;
    held boolean;
BEGIN
    -- A time that lies further ahead than it can was stored before the clock went back, or before the policy changed. Without a
    -- mark no lease is left; the upkeep makes the mark again.
    IF policy.rate_limit IS NOT NULL THEN
        step := ceil(extract(epoch FROM policy.rate_period) * 1000000 / policy.rate_limit);
        room := policy.rate_burst * step;
        spent := CASE WHEN policy.rate_mark IS NULL THEN now + room ELSE coalesce(pg_sequence_last_value(policy.rate_mark), 0) END;
        IF spent NOT BETWEEN now AND now + room THEN
            spent := now;
        END IF;
        leases := (now + room - spent) / step;
        next_at := 'epoch'::timestamptz + (spent + (leases + 1) * step - room) * interval '1 us';
    END IF;
    IF policy.broken_since IS NOT NULL THEN
        -- Each pause is as long as the queue has been broken: they double.
        pause := extract(epoch FROM greatest(interval '1 ms', least(
            policy.backoff_max, greatest(policy.backoff_first, moment - policy.broken_since)))) * 1000000;
        due := CASE WHEN policy.probe_due IS NULL THEN now + pause ELSE coalesce(pg_sequence_last_value(policy.probe_due), 0) END;
        IF due > now + pause THEN
            due := now;
        END IF;
        held := EXISTS (SELECT FROM messages.message_rows m WHERE m.id = pg_sequence_last_value(policy.probe) AND m.lock_expires_at > moment);
        next_at := greatest(CASE WHEN leases = 0 THEN next_at END, 'epoch'::timestamptz + due * interval '1 us',
                            CASE WHEN held THEN moment + interval '1 s' END);
        leases := CASE WHEN held OR due > now THEN 0 ELSE least(leases, 1) END;
    END IF;
END $$;
COMMENT ON FUNCTION messages.rate_left(messages.queue, timestamptz) IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, NULL for any number, and when it allows one more than these; while the queue is broken one after each pause, if nobody holds the last. In microseconds: each uses up a step of the rate, which is used up to spent, and the pause until the next.';
