CREATE OR REPLACE FUNCTION messages.check_policy(
    max_attempts    integer,
    lease_for       interval,
    notify          text,
    max_body_bytes  integer,
    fair_by         text,
    weights         jsonb,
    backoff_first   interval,
    backoff_max     interval,
    dedup_window    interval,
    retention       interval,
    on_dead_head    text,
    max_leased      integer,
    max_leased_per_group integer,
    rate_limit      integer,
    rate_limit_per_group integer,
    rate_period     interval,
    rate_burst      integer,
    max_depth       bigint,
    handler_timeout interval,
    break_after     integer
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_number('max_attempts', max_attempts, 1, 1000);
    PERFORM messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
    PERFORM messages.check_number('max_body_bytes', max_body_bytes, 1, 268435455);
    PERFORM messages.check_duration('backoff_first', backoff_first, '0', '1 day');
    PERFORM messages.check_duration('backoff_max', backoff_max, '0', '30 days');
    PERFORM messages.check_duration('dedup_window', dedup_window, '1 second', '366 days');
    PERFORM messages.check_duration('retention', retention, '0', '100 years');
    PERFORM messages.check_number('max_leased', max_leased, 0, 1000000);
    PERFORM messages.check_number('max_leased_per_group', max_leased_per_group, 1, 10000);
    PERFORM messages.check_number('rate_limit', rate_limit, 0, 1000000);
    PERFORM messages.check_number('rate_limit_per_group', rate_limit_per_group, 0, 1000000);
    PERFORM messages.check_duration('rate_period', rate_period, '1 millisecond', '31 days');
    PERFORM messages.check_number('rate_burst', rate_burst, 1, 10000);
    PERFORM messages.check_number('max_depth', max_depth, 0, 1000000000000);
    PERFORM messages.check_duration('handler_timeout', handler_timeout, '0', '30 days');
    PERFORM messages.check_number('break_after', break_after, 0, 100);
    IF fair_by NOT IN ('group', 'topic', '') THEN
        RAISE EXCEPTION 'fair_by is %', quote_literal(left(fair_by, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give group or topic, or an empty text for none.';
    END IF;
    IF jsonb_typeof(weights) <> 'object' OR messages.json_bytes(weights) > 16384
       OR jsonb_path_query_array(weights, '$.* ? (@.type() == "number" && @ >= 1 && @ <= 32 && @.floor() == @)')
          <> jsonb_path_query_array(weights, '$.*') THEN
        RAISE EXCEPTION 'weights is not an object of weights' USING ERRCODE = 'PQ004',
            HINT = 'Give {"key": weight} of at most 16,384 bytes, each weight a whole number from 1 to 32.';
    END IF;
    IF notify NOT IN ('always', 'gated', 'off') THEN
        RAISE EXCEPTION 'notify is %', quote_literal(left(notify, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give always, gated or off.';
    END IF;
    IF on_dead_head NOT IN ('block', 'skip') THEN
        RAISE EXCEPTION 'on_dead_head is %', quote_literal(left(on_dead_head, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give block or skip.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_policy(integer, interval, text, integer, text, jsonb, interval, interval, interval, interval, text, integer, integer, integer, integer, interval, integer, bigint, interval, integer) IS
    'Raises PQ004 for a policy value out of range; NULL means not given.';
