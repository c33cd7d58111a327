CREATE OR REPLACE FUNCTION messages.health_schedules() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH schedule AS (
        SELECT s.*, clock_timestamp() - s.next_at AS late FROM messages.schedules() s WHERE NOT s.paused),
    worst AS (
        SELECT * FROM schedule s WHERE s.late > '3 minutes' OR s.last_error IS NOT NULL ORDER BY s.late DESC NULLS LAST LIMIT 1)
    SELECT CASE WHEN worst.schedule_name IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN worst.schedule_name IS NULL THEN format('schedules on time: %s', (SELECT count(*) FROM schedule))
                ELSE format('schedule %s is late by %s', worst.schedule_name, date_trunc('second', greatest(worst.late, '0')))
                     || coalesce('; its last error: ' || left(worst.last_error, 200), '') END,
           CASE WHEN worst.last_error IS NOT NULL THEN 'SELECT messages.run_schedules() -- when what the error says is mended'
                WHEN worst.schedule_name IS NOT NULL THEN 'SELECT messages.run_schedules()' END
      FROM (VALUES (true)) AS one (row) LEFT JOIN worst ON true
$$;
COMMENT ON FUNCTION messages.health_schedules() IS
    'A check of health(). The schedule that is most overdue, and why.';
