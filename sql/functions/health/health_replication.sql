CREATE OR REPLACE FUNCTION messages.health_replication() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Slots and standbys do not say when they took their snapshot, only how many transactions ago.
    WITH holder AS (
        SELECT format('replication slot %s (%s)', s.slot_name, CASE WHEN s.active THEN 'active' ELSE 'nobody uses it' END) AS name,
               greatest(age(s.xmin), age(s.catalog_xmin)) AS transactions, s.active,
               format('SELECT * FROM pg_replication_slots WHERE slot_name = %1$L -- start what reads it, or if nothing will: SELECT pg_drop_replication_slot(%1$L)', s.slot_name) AS fix
          FROM pg_replication_slots s
         WHERE (s.database = current_database() OR s.database IS NULL) AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
        UNION ALL
        SELECT format('standby %s (session %s, hot_standby_feedback)', coalesce(nullif(r.application_name, ''), 'without a name'), r.pid),
               age(r.backend_xmin), true, format('SELECT pg_terminate_backend(%s) -- and end the long query on the standby', r.pid)
          FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL)
    SELECT CASE WHEN transactions > 100000000 THEN 'critical' WHEN transactions > 1000000 OR NOT active THEN 'warning' ELSE 'ok' END,
           CASE WHEN name IS NULL THEN 'no replication slot and no standby holds a snapshot'
                ELSE format('%s holds back VACUUM; transactions since: %s', name, transactions) END,
           CASE WHEN transactions > 1000000 OR NOT active THEN fix END
      FROM (VALUES (true)) AS one (row)
      LEFT JOIN LATERAL (SELECT * FROM holder h ORDER BY h.active, h.transactions DESC LIMIT 1) worst ON true
$$;
COMMENT ON FUNCTION messages.health_replication() IS
    'A check of health(). The replication slot or standby that holds back VACUUM; an unused one before all others.';
