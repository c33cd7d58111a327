CREATE OR REPLACE FUNCTION messages.schedule(
    schedule_name text,
    cron          text,
    queue_name    text,
    message       jsonb,
    time_zone     text    DEFAULT 'UTC',
    priority      integer DEFAULT 4,
    headers       jsonb   DEFAULT NULL,
    paused        boolean DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    added  boolean;
BEGIN
    IF schedule.schedule_name IS NULL OR schedule.schedule_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'schedule_name is %', coalesce(quote_literal(left(schedule.schedule_name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
    -- AT TIME ZONE itself takes almost any text with a number in it, as an offset with the opposite sign.
    -- Listing all names reads hundreds of files; UTC is known without that.
    IF (CASE WHEN schedule.time_zone = 'UTC' THEN false
             WHEN length(schedule.time_zone) <= 100
             THEN NOT EXISTS (SELECT FROM pg_timezone_names z WHERE lower(z.name) = lower(schedule.time_zone))
             ELSE true END) THEN
        RAISE EXCEPTION 'time_zone is %', coalesce(quote_literal(left(schedule.time_zone, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a name of pg_timezone_names, such as UTC or Europe/Berlin.';
    END IF;
    IF messages.next_cron_tick(schedule.cron, schedule.time_zone, moment) IS NULL THEN
        RAISE EXCEPTION 'cron % never has a tick', quote_literal(left(schedule.cron, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give a day that the month has.';
    END IF;
    IF schedule.message IS NULL THEN
        RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
    END IF;
    PERFORM messages.check_publish(schedule.priority, NULL, NULL, NULL, schedule.headers),
            -- These two headers are added at each tick.
            messages.check_headers(schedule.headers || jsonb_build_object('schedule', schedule.schedule_name, 'tick', '2000-01-01T00:00:00Z')),
            messages.check_queue(schedule.queue_name, 'publish');
    INSERT INTO messages.schedule AS s (schedule_name, cron, time_zone, queue_name, message, priority, headers, paused,
                                        created_at, checked_until)
    VALUES (schedule.schedule_name, schedule.cron, schedule.time_zone, schedule.queue_name, schedule.message,
            schedule.priority, schedule.headers, coalesce(schedule.paused, false), moment, moment)
    ON CONFLICT DO NOTHING;
    added := FOUND;
    -- Past ticks belong to the old times or to the pause, and are not made up for.
    UPDATE messages.schedule s
       SET cron = schedule.cron, time_zone = schedule.time_zone, queue_name = schedule.queue_name,
           message = schedule.message, priority = schedule.priority, headers = schedule.headers,
           paused = coalesce(schedule.paused, s.paused), last_error = NULL,
           checked_until = CASE WHEN (s.cron, s.time_zone) <> (schedule.cron, schedule.time_zone)
                                  OR s.paused AND NOT schedule.paused
                                THEN clock_timestamp() ELSE s.checked_until END
     WHERE NOT added AND s.schedule_name = schedule.schedule_name
       AND (s.cron, s.time_zone, s.queue_name, s.message, s.priority, s.headers, s.paused)
           IS DISTINCT FROM (schedule.cron, schedule.time_zone, schedule.queue_name, schedule.message,
                             schedule.priority::smallint, schedule.headers, coalesce(schedule.paused, s.paused));
    IF added OR FOUND THEN
        PERFORM messages.record_audit('schedule', schedule.queue_name, jsonb_build_object(
            'schedule_name', schedule.schedule_name, 'cron', schedule.cron, 'time_zone', schedule.time_zone,
            'priority', nullif(schedule.priority, 4), 'paused', schedule.paused), NULL);
    END IF;
    RETURN added;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('schedule %L', schedule.schedule_name));
END $$;
COMMENT ON FUNCTION messages.schedule(text, text, text, jsonb, text, integer, jsonb, boolean) IS
    'Publishes a message at each tick of a cron expression from now on. Returns true if the schedule is new, false if it existed and was changed. paused => NULL keeps it paused or running. PQ001: unknown queue; PQ004: bad argument; PQ016: another transaction is changing it for more than three seconds.';
