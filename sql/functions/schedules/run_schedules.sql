CREATE OR REPLACE FUNCTION messages.run_schedules() RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT messages.run_schedules_at(clock_timestamp()) $$;
COMMENT ON FUNCTION messages.run_schedules() IS
    'Publishes what is due and returns the number of messages, which is one for each schedule, however many of its ticks of the last day were missed. Safe to run concurrently; a schedule that fails is left to the next run and stops no other.';
