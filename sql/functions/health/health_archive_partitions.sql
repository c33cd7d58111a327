CREATE OR REPLACE FUNCTION messages.health_archive_partitions() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH part AS (SELECT * FROM messages.archive_partitions()),
    now_in AS (SELECT max(p.end_at) AS end_at FROM part p WHERE p.first_at <= clock_timestamp() AND p.end_at > clock_timestamp()),
    judged AS (
        SELECT EXISTS (SELECT FROM messages.message_archive_default) AS strays, now_in.end_at IS NULL AS none_now,
               NOT EXISTS (SELECT FROM part p WHERE p.first_at <= now_in.end_at AND p.end_at > now_in.end_at) AS none_next
          FROM now_in)
    SELECT CASE WHEN none_now AND NOT strays THEN 'critical' WHEN none_now OR none_next OR strays THEN 'warning' ELSE 'ok' END,
           format('partitions: %s, from %s to %s', (SELECT count(*) FROM part), (SELECT min(first_at) FROM part), (SELECT max(end_at) FROM part))
           || CASE WHEN strays THEN '; the default partition has messages' WHEN none_now THEN '; none for the current period'
                   WHEN none_next THEN '; none for the next period' ELSE '' END,
           CASE WHEN strays THEN 'SELECT messages.adopt_archive_default()'
                WHEN none_now OR none_next THEN 'SELECT messages.upkeep()' END
      FROM judged
$$;
COMMENT ON FUNCTION messages.health_archive_partitions() IS
    'A check of health(). Whether the archive has partitions for the current and the next period, and whether messages lie in its default partition.';
