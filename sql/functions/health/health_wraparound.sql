CREATE OR REPLACE FUNCTION messages.health_wraparound() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Autovacuum freezes at 200 million by default, and throws its limits away at 1.6 billion.
    SELECT CASE WHEN oldest.age > 1600000000 THEN 'critical' WHEN oldest.age > 1000000000 THEN 'warning' ELSE 'ok' END,
           format('the oldest unfrozen row may be %s transactions old, in messages.%s; PostgreSQL stops at 2147483648', oldest.age, oldest.name),
           CASE WHEN oldest.age > 1000000000 THEN format('VACUUM (FREEZE) messages.%I', oldest.name) END
      FROM (SELECT c.relname AS name, greatest(age(c.relfrozenxid), mxid_age(c.relminmxid), age(t.relfrozenxid), mxid_age(t.relminmxid)) AS age
              FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
             WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'r'
             ORDER BY 2 DESC LIMIT 1) oldest
$$;
COMMENT ON FUNCTION messages.health_wraparound() IS
    'A check of health(). The table of the schema that is closest to the wraparound of transaction ids.';
