CREATE OR REPLACE FUNCTION messages.pause_schedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE messages.schedule s SET paused = true WHERE s.schedule_name = pause_schedule.schedule_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_schedule(pause_schedule.schedule_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.pause_schedule(text) IS
    'Stops a schedule until it is resumed; pausing it twice does no harm. PQ011: unknown schedule.';
