CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz, OUT leases bigint, OUT next_at timestamptz, OUT spent timestamptz, OUT step interval
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Without a mark no lease is left; the upkeep makes the mark again.
    SELECT b.* INTO spent, leases, next_at, step
      FROM messages.token_bucket(CASE WHEN policy.rate_mark IS NOT NULL THEN messages.stored_time(policy.rate_mark) END,
                                 moment, policy.rate_limit, policy.rate_period, policy.rate_burst) b;
END $$;
COMMENT ON FUNCTION messages.rate_left(messages.queue, timestamptz) IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, and when it allows one more than these. It is used up to spent, and each lease uses up one step more.';
