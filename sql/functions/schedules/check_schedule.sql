CREATE OR REPLACE FUNCTION messages.check_schedule(
    schedule_name text,
    cron          text,
    time_zone     text,
    message       jsonb,
    priority      integer,
    headers       jsonb
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF schedule_name IS NULL OR schedule_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'schedule_name is %', coalesce(quote_literal(left(schedule_name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
    -- AT TIME ZONE itself takes almost any text with a number in it, as an offset with the opposite sign.
    -- Listing all names reads hundreds of files; UTC is known without that.
    IF (CASE WHEN time_zone = 'UTC' THEN false
             WHEN length(time_zone) <= 100 THEN NOT EXISTS (SELECT FROM pg_timezone_names z WHERE lower(z.name) = lower(time_zone))
             ELSE true END) THEN
        RAISE EXCEPTION 'time_zone is %', coalesce(quote_literal(left(time_zone, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a name of pg_timezone_names, such as UTC or Europe/Berlin.';
    END IF;
    IF messages.next_cron_tick(cron, time_zone, clock_timestamp()) IS NULL THEN
        RAISE EXCEPTION 'cron % never has a tick', quote_literal(left(cron, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give a day that the month has.';
    END IF;
    IF message IS NULL THEN
        RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
    END IF;
    PERFORM messages.check_publish(priority, NULL, NULL, NULL, headers);
    -- These two headers are added at each tick.
    PERFORM messages.check_headers(headers || jsonb_build_object('schedule', schedule_name, 'tick', '2000-01-01T00:00:00Z'));
END $$;
COMMENT ON FUNCTION messages.check_schedule(text, text, text, jsonb, integer, jsonb) IS
    'Raises PQ004 for an argument of schedule that is out of range.';
