CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz,
    OUT leases bigint, OUT next_at timestamptz, OUT spent timestamptz, OUT step interval, OUT pause interval
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    due  timestamptz;
    held boolean;
BEGIN
    IF policy.rate_limit IS NOT NULL THEN
        -- Without a mark no lease is left; the upkeep makes the mark again.
        SELECT b.* INTO spent, leases, next_at, step
          FROM messages.token_bucket(CASE WHEN policy.rate_mark IS NOT NULL THEN messages.stored_time(policy.rate_mark) END,
                                     moment, policy.rate_limit, policy.rate_period, policy.rate_burst) b;
    END IF;
    IF policy.broken_since IS NOT NULL THEN
        -- Each pause is as long as the queue has been broken: they double.
        pause := greatest(interval '1 ms', least(policy.backoff_max, greatest(policy.backoff_first, moment - policy.broken_since)));
        due := CASE WHEN policy.probe_due IS NULL THEN moment + pause ELSE messages.stored_time(policy.probe_due, moment + pause) END;
        held := EXISTS (SELECT FROM messages.message_rows m WHERE m.id = pg_sequence_last_value(policy.probe) AND m.lock_expires_at > moment);
        next_at := greatest(CASE WHEN leases = 0 THEN next_at END, due,
                            CASE WHEN held THEN moment + interval '1 s' END);
        leases := CASE WHEN held OR due > moment THEN 0 ELSE least(leases, 1) END;
    END IF;
END $$;
COMMENT ON FUNCTION messages.rate_left(messages.queue, timestamptz) IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, NULL for any number, and when it allows one more than these; while the queue is broken one after each pause, if nobody holds the last. Each uses up a step of the rate, which is used up to spent, and begins a pause.';
