CREATE OR REPLACE FUNCTION messages.resume_schedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    before messages.schedule;
BEGIN
    SELECT * INTO before FROM messages.schedule s WHERE s.schedule_name = resume_schedule.schedule_name FOR NO KEY UPDATE;
    IF before.schedule_name IS NULL THEN
        PERFORM messages.raise_unknown_schedule(resume_schedule.schedule_name);
    ELSIF before.paused THEN
        UPDATE messages.schedule s SET paused = false, checked_until = clock_timestamp() WHERE s.schedule_name = resume_schedule.schedule_name;
        PERFORM messages.record_audit('resume_schedule', before.queue_name, jsonb_build_object('schedule_name', before.schedule_name), NULL);
    END IF;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('schedule %L', resume_schedule.schedule_name));
END $$;
COMMENT ON FUNCTION messages.resume_schedule(text) IS
    'Lets a paused schedule continue with its next tick; the ticks that it missed are not made up for. PQ011: unknown schedule; PQ016: another transaction is changing it for more than three seconds.';
