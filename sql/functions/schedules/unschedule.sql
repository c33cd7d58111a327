CREATE OR REPLACE FUNCTION messages.unschedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM messages.schedule s WHERE s.schedule_name = unschedule.schedule_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_schedule(unschedule.schedule_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.unschedule(text) IS
    'Removes a schedule; the messages that it published stay. PQ011: unknown schedule.';
