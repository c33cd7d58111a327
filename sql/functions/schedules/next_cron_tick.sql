CREATE OR REPLACE FUNCTION messages.next_cron_tick(cron text, time_zone text, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ahead interval;
    tick  timestamptz;
BEGIN
    -- The near time is searched first, so that a dense expression makes few ticks. The 29th of February on a given weekday may take 40 years.
    FOREACH ahead IN ARRAY ARRAY[interval '1 hour', '2 days', '32 days', '1 year', '8 years', '40 years'] LOOP
        SELECT min(t) INTO tick FROM messages.cron_ticks(cron, time_zone, after, after + ahead) AS t;
        EXIT WHEN tick IS NOT NULL;
    END LOOP;
    RETURN tick;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN NULL;                           -- a time zone that the server no longer knows must not hide the other schedules
END $$;
COMMENT ON FUNCTION messages.next_cron_tick(text, text, timestamptz) IS
    'The first tick of a cron expression after a time; NULL if there is none in 40 years, or no such time zone. PQ004: not a cron expression.';
