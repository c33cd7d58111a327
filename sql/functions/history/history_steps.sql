CREATE OR REPLACE FUNCTION messages.history_steps(
    since timestamptz, until timestamptz, step interval,
    OUT first_at timestamptz, OUT end_at timestamptz, OUT origin timestamptz
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_duration('step', history_steps.step, '1 minute', '366 days', required => true);
    IF extract(month FROM history_steps.step) <> 0 OR extract(year FROM history_steps.step) <> 0
       OR mod(extract(epoch FROM history_steps.step), 60) <> 0 THEN
        RAISE EXCEPTION 'step is %', history_steps.step
            USING ERRCODE = 'PQ004', HINT = 'Give whole minutes, hours or days.';
    END IF;
    origin := '2001-01-01 00:00 UTC';
    end_at := coalesce(history_steps.until, moment);
    IF NOT isfinite(end_at) OR NOT isfinite(coalesce(history_steps.since, moment))
       OR end_at > moment + interval '10 years' OR history_steps.since < origin THEN
        RAISE EXCEPTION 'the time from % to % is out of range', history_steps.since, history_steps.until
            USING ERRCODE = 'PQ004', HINT = 'Give times after 2001 and not in the far future.';
    END IF;
    first_at := date_bin(history_steps.step, coalesce(history_steps.since, end_at - interval '1 hour'), origin);
    IF first_at >= end_at THEN
        RAISE EXCEPTION 'the time from % to % is empty', first_at, end_at
            USING ERRCODE = 'PQ004', HINT = 'Give an end that is later than the beginning.';
    ELSIF date_part('epoch', end_at - first_at) > 10000 * date_part('epoch', history_steps.step) THEN
        RAISE EXCEPTION 'from % to % there are more than 10000 steps of %', first_at, end_at, history_steps.step
            USING ERRCODE = 'PQ004', HINT = 'Give a longer step or a shorter time.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.history_steps(timestamptz, timestamptz, interval) IS
    'Where the steps of a time begin and end: NULL stands for now, and for an hour earlier. PQ004: a bad step, or too many of them.';
