CREATE OR REPLACE FUNCTION messages.health_drift() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH recorded AS (SELECT max(o.server) AS server, count(*) AS objects FROM messages.release_object o),
    drift AS (
        SELECT d.*, row_number() OVER () AS place FROM messages.release_differences() d
         WHERE (SELECT server FROM recorded) = current_setting('server_version_num')::integer / 10000)
    SELECT CASE WHEN r.server IS NULL OR count(*) FILTER (WHERE d.difference <> 'added' AND d.kind NOT IN ('options', 'owner', 'grant', 'view')) > 0 THEN 'critical'
                WHEN count(d.kind) > 0 OR r.server <> current_setting('server_version_num')::integer / 10000 THEN 'warning' ELSE 'ok' END,
           CASE WHEN r.server IS NULL THEN 'what was installed is not recorded'
                WHEN r.server <> current_setting('server_version_num')::integer / 10000
                THEN format('what was installed was recorded by PostgreSQL %s, this is %s', r.server, current_setting('server_version_num')::integer / 10000)
                WHEN count(d.kind) = 0 THEN format('all %s objects are as installed', r.objects)
                ELSE string_agg(format('%s %s is %s', d.kind, d.name, d.difference), '; ' ORDER BY d.place) FILTER (WHERE d.place <= 10)
                     || CASE WHEN count(d.kind) > 10 THEN format('; and %s more', count(d.kind) - 10) ELSE '' END END,
           CASE WHEN r.server IS DISTINCT FROM current_setting('server_version_num')::integer / 10000 OR count(d.kind) > 0
                THEN '-- install again, which mends it: pgqueue install, the setup DAG, or psql -f sql/install.sql' END
      FROM recorded r LEFT JOIN drift d ON true GROUP BY r.server, r.objects
$$;
COMMENT ON FUNCTION messages.health_drift() IS
    'A check of health(). What is missing, changed or added in the schema since it was installed; at most ten by name.';
