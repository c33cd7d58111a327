CREATE OR REPLACE FUNCTION messages.health_upkeep_steps() RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN f.step IS NULL THEN 'ok' ELSE 'warning' END,
           CASE WHEN f.step IS NULL THEN 'no step of the upkeep fails'
                ELSE format('%s of the upkeep fails%s since %s, and all else continues: %s (%s)', f.step,
                            CASE WHEN f.subject <> '' THEN ' for ' || quote_literal(f.subject) END, date_trunc('second', f.since), f.error, f.sqlstate) END,
           CASE WHEN f.step IS NOT NULL THEN '-- remove what the error names; the upkeep tries again each minute, and at once with: SELECT messages.upkeep()' END
      FROM (VALUES (true)) AS one (row) LEFT JOIN (SELECT * FROM messages.upkeep_failure ORDER BY since, step, subject LIMIT 20) f ON true
$$;
COMMENT ON FUNCTION messages.health_upkeep_steps() IS
    'A check of health(). What the upkeep cannot do: the step, the queue or partition, and the error; the oldest twenty.';
