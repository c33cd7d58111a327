CREATE OR REPLACE FUNCTION messages.run_schedules_at(moment timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    known     record;
    due       messages.schedule;
    tick      timestamptz;
    published integer := 0;
BEGIN
    FOR known IN
        SELECT s.schedule_name, s.cron, s.time_zone, s.checked_until
          FROM messages.schedule s WHERE NOT s.paused ORDER BY s.schedule_name
    LOOP
        BEGIN
            SELECT max(t) INTO tick
              FROM messages.cron_ticks(known.cron, known.time_zone, greatest(known.checked_until, moment - interval '24 hours'),
                                       moment) AS t;
            CONTINUE WHEN tick IS NULL;
            -- Another session may have published it, or be doing so now.
            SELECT * INTO due
              FROM messages.schedule s
             WHERE s.schedule_name = known.schedule_name AND s.checked_until = known.checked_until AND NOT s.paused
               FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            -- publish() would check the privileges of this login.
            INSERT INTO messages.message (queue_name, message, priority, headers)
            VALUES (due.queue_name, due.message, due.priority, coalesce(due.headers, '{}') || jsonb_build_object(
                    'schedule', due.schedule_name,
                    'tick', to_char(tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')));
            UPDATE messages.schedule s SET last_tick = tick, checked_until = moment, last_error = NULL
             WHERE s.schedule_name = due.schedule_name;
            published := published + 1;
        EXCEPTION WHEN OTHERS THEN
            -- The tick stays due, and the next run tries again; warn only once.
            PERFORM FROM messages.schedule s
              WHERE s.schedule_name = known.schedule_name AND s.checked_until = known.checked_until
                AND s.last_error IS DISTINCT FROM left(SQLERRM, 500)
                FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                UPDATE messages.schedule s SET last_error = left(SQLERRM, 500)
                 WHERE s.schedule_name = known.schedule_name;
                RAISE WARNING 'schedule % could not publish: %', known.schedule_name, left(SQLERRM, 500);
            END IF;
        END;
    END LOOP;
    RETURN published;
END $$;
COMMENT ON FUNCTION messages.run_schedules_at(timestamptz) IS
    'Does what run_schedules does, as if this time were now.';
