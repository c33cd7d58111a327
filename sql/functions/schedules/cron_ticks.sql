CREATE OR REPLACE FUNCTION messages.cron_ticks(cron text, time_zone text, after timestamptz, until timestamptz)
RETURNS SETOF timestamptz
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    meant      record := messages.parse_cron(cron);
    -- The wall clock is read a day before the first and a day after the last time: a clock change near either end then only adds candidates.
    lowest     timestamp := least((after - interval '24 hours') AT TIME ZONE time_zone + interval '24 hours',
                                  (after + interval '24 hours') AT TIME ZONE time_zone - interval '24 hours');
    highest    timestamp := greatest((until - interval '24 hours') AT TIME ZONE time_zone + interval '24 hours',
                                     (until + interval '24 hours') AT TIME ZONE time_zone - interval '24 hours');
    today      date := lowest::date;
    on_day     boolean;
    on_weekday boolean;
BEGIN
    IF NOT isfinite(after) OR NOT isfinite(until) OR until > after + interval '41 years' THEN
        RAISE EXCEPTION 'from % to % is too long', after, until
            USING ERRCODE = 'PQ004', HINT = 'Give two times that are at most 41 years apart.';
    END IF;
    WHILE today <= highest LOOP
        on_day := extract(day FROM today) = ANY (meant.days);
        on_weekday := extract(dow FROM today) = ANY (meant.weekdays);
        IF extract(month FROM today) = ANY (meant.months)
            AND (on_day AND on_weekday OR meant.either_day AND (on_day OR on_weekday))
        THEN
            RETURN QUERY
            WITH wall AS MATERIALIZED (
                SELECT today + make_time(hour, minute, 0) AS clock
                  FROM unnest(meant.hours) AS hour CROSS JOIN unnest(meant.minutes) AS minute
                 WHERE today + make_time(hour, 59, 59) > lowest AND today + make_time(hour, 0, 0) <= highest),
            -- A time that the clock skips moves forward by the length of the gap. For a time that comes twice PostgreSQL returns the second:
            -- the first is earlier by as much as the clock goes back.
            placed AS MATERIALIZED (
                SELECT w.clock, w.clock AT TIME ZONE time_zone AS second,
                       w.clock AT TIME ZONE time_zone - ((w.clock AT TIME ZONE time_zone - interval '24 hours') AT TIME ZONE time_zone
                                                         + interval '24 hours' - w.clock) AS first
                  FROM wall w WHERE w.clock > lowest AND w.clock <= highest)
            SELECT DISTINCT tick
              FROM placed p
             CROSS JOIN LATERAL (VALUES (CASE WHEN p.first AT TIME ZONE time_zone = p.clock THEN p.first ELSE p.second END),
                                        (CASE WHEN meant.every_hour THEN p.second END)) AS ticks (tick)
             WHERE tick > after AND tick <= until
             ORDER BY tick;
        END IF;
        today := today + 1;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.cron_ticks(text, text, timestamptz, timestamptz) IS
    'The ticks of a cron expression after one time, until another. PQ004: not a cron expression, or more than 41 years.';
