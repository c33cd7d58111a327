CREATE OR REPLACE FUNCTION messages.check_policy(
    max_attempts   integer,
    lease_for      interval,
    notify         text,
    max_body_bytes integer
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts is %', max_attempts USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 1000.';
    END IF;
    PERFORM messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
    IF notify NOT IN ('always', 'gated', 'off') THEN
        RAISE EXCEPTION 'notify is %', quote_literal(left(notify, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give always, gated or off.';
    END IF;
    IF max_body_bytes NOT BETWEEN 1 AND 268435455 THEN
        RAISE EXCEPTION 'max_body_bytes is %', max_body_bytes
            USING ERRCODE = 'PQ004', HINT = 'Give a number of bytes from 1 to 268435455.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_policy(integer, interval, text, integer) IS
    'Internal. Raises PQ004 for a policy value out of range; NULL means not given.';
