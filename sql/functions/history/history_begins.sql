CREATE OR REPLACE FUNCTION messages.history_begins() RETURNS TABLE (grain text, since timestamptz, until timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
    SELECT k.grain, k.since, k.until
      FROM messages.history_policy p
     CROSS JOIN LATERAL (SELECT date_trunc('hour', clock_timestamp() - p.minutes_for, 'UTC') + interval '1 hour' AS minutes,
                                date_trunc('day', clock_timestamp() - p.hours_for, 'UTC') + interval '1 day' AS hours) begins
     CROSS JOIN LATERAL (
        VALUES ('minute', begins.minutes, 'infinity'), ('hour', begins.hours, begins.minutes),
               ('day', coalesce(date_trunc('day', clock_timestamp() - p.days_for, 'UTC'), '-infinity'), begins.hours)) AS k (grain, since, until)
$$;
COMMENT ON FUNCTION messages.history_begins() IS
    'Since when the history is kept in each grain, and until when it is read in it: from there on the next shorter grain has it.';
