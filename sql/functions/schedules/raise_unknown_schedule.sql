CREATE OR REPLACE FUNCTION messages.raise_unknown_schedule(schedule_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'schedule % does not exist', coalesce(quote_literal(left(schedule_name, 100)), 'NULL')
        USING ERRCODE = 'PQ011', HINT = 'List them: SELECT * FROM messages.schedules()';
END $$;
COMMENT ON FUNCTION messages.raise_unknown_schedule(text) IS 'Raises PQ011 with the schedule and the fix.';
