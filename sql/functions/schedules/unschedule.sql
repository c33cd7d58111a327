CREATE OR REPLACE FUNCTION messages.unschedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    gone messages.schedule;
BEGIN
    DELETE FROM messages.schedule s WHERE s.schedule_name = unschedule.schedule_name RETURNING * INTO gone;
    IF gone.schedule_name IS NULL THEN
        PERFORM messages.raise_unknown_schedule(unschedule.schedule_name);
    END IF;
    PERFORM messages.record_audit('unschedule', gone.queue_name, jsonb_build_object('schedule_name', gone.schedule_name), NULL);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('schedule %L', unschedule.schedule_name));
END $$;
COMMENT ON FUNCTION messages.unschedule(text) IS
    'Removes a schedule; the messages that it published stay. PQ011: unknown schedule; PQ016: another transaction is changing it for more than three seconds.';
