CREATE OR REPLACE FUNCTION messages.pause_schedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    before messages.schedule;
BEGIN
    SELECT * INTO before FROM messages.schedule s WHERE s.schedule_name = pause_schedule.schedule_name FOR NO KEY UPDATE;
    IF before.schedule_name IS NULL THEN
        PERFORM messages.raise_unknown_schedule(pause_schedule.schedule_name);
    ELSIF NOT before.paused THEN
        UPDATE messages.schedule s SET paused = true WHERE s.schedule_name = pause_schedule.schedule_name;
        PERFORM messages.record_audit('pause_schedule', before.queue_name, jsonb_build_object('schedule_name', before.schedule_name), NULL);
    END IF;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('schedule %L', pause_schedule.schedule_name));
END $$;
COMMENT ON FUNCTION messages.pause_schedule(text) IS
    'Stops a schedule until it is resumed; pausing it twice does no harm. PQ011: unknown schedule; PQ016: another transaction is changing it for more than three seconds.';
