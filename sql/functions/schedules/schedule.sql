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
    PERFORM messages.check_schedule(schedule.schedule_name, schedule.cron, schedule.time_zone, schedule.message,
                                    schedule.priority, schedule.headers), messages.check_queue(schedule.queue_name, 'publish');
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
