CREATE OR REPLACE FUNCTION messages.health_grants() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN count(e.grantee) = 0 THEN 'ok' ELSE 'critical' END,
           CASE WHEN count(e.grantee) = 0 THEN 'no role has privileges beyond the list of grants'
                ELSE string_agg(format('%s has %s on %s', e.grantee, e.privileges, array_to_string(e.things[:3], ', '))
                                || CASE WHEN cardinality(e.things) > 3 THEN format(' and %s more', cardinality(e.things) - 3) ELSE '' END, '; ' ORDER BY e.grantee, e.command) END,
           string_agg(e.command, '; ' ORDER BY e.grantee, e.command)
      FROM (VALUES (true)) AS one (row) LEFT JOIN messages.extra_grants() e ON true
$$;
COMMENT ON FUNCTION messages.health_grants() IS
    'A check of health(). Each role that may read or run what it should not, as after ALTER DEFAULT PRIVILEGES of whoever installed.';
