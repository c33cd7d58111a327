CREATE OR REPLACE FUNCTION messages.health_upkeep_steps() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           CASE WHEN count(*) = 0 THEN 'no step of the upkeep fails'
                ELSE 'all else continues, but the upkeep fails in '
                     || string_agg(format('%s%s since %s: %s (%s)', f.step, ' for ' || quote_literal(nullif(f.subject, '')),
                                          date_trunc('second', f.since), f.error, f.sqlstate), '; ' ORDER BY f.place) FILTER (WHERE f.place <= 5)
                     || CASE WHEN count(*) > 5 THEN format('; and %s more in messages.upkeep_failure', count(*) - 5) ELSE '' END END,
           CASE WHEN count(*) > 0 THEN '-- remove what the error names; the upkeep tries again each minute, and at once with: SELECT messages.upkeep()' END
      FROM (SELECT u.*, row_number() OVER (ORDER BY u.since, u.step, u.subject) AS place FROM messages.upkeep_failure u) f
$$;
COMMENT ON FUNCTION messages.health_upkeep_steps() IS
    'A check of health(). What the upkeep cannot do: the step, the queue or partition, and the error, of the five that fail for longest.';
