CREATE OR REPLACE FUNCTION messages.resume_schedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE messages.schedule s
       SET paused = false, checked_until = CASE WHEN s.paused THEN clock_timestamp() ELSE s.checked_until END
     WHERE s.schedule_name = resume_schedule.schedule_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_schedule(resume_schedule.schedule_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.resume_schedule(text) IS
    'Lets a paused schedule continue with its next tick; the ticks that it missed are not made up for. PQ011: unknown schedule.';
