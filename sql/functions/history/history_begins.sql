CREATE OR REPLACE FUNCTION messages.history_begins() RETURNS TABLE (grain text, since timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
    -- Minutes stay until their hour is made, and hours until their day is.
    SELECT 'minute', least(date_trunc('hour', clock_timestamp() - p.minutes_for, 'UTC') + interval '1 hour', g.hours_until)
      FROM messages.history_policy p, messages.history_progress g
    UNION ALL
    SELECT 'hour', least(date_trunc('day', clock_timestamp() - p.hours_for, 'UTC') + interval '1 day', g.days_until)
      FROM messages.history_policy p, messages.history_progress g
    UNION ALL
    SELECT 'day', coalesce(date_trunc('day', clock_timestamp() - p.days_for, 'UTC'), '-infinity') FROM messages.history_policy p
$$;
COMMENT ON FUNCTION messages.history_begins() IS 'From when on the history is kept in each grain; before that the next longer grain has it.';
