CREATE OR REPLACE FUNCTION messages.health_settings() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH wanted (place, name, bad, good, without_it) AS (VALUES
        (1, 'fsync', 'off', 'on', 'a crash of the machine loses or breaks data'),
        (2, 'full_page_writes', 'off', 'on', 'a crash of the machine breaks data'),
        (3, 'synchronous_commit', 'off', 'on', 'a crash loses publishes that were acknowledged'),
        (4, 'autovacuum', 'off', 'on', 'nobody removes dead versions'),
        (5, 'track_counts', 'off', 'on', 'autovacuum sees nothing to do'),
        (6, 'track_activities', 'off', 'on', 'nobody sees who holds a snapshot'),
        (7, 'session_replication_role', 'replica', 'origin', 'no trigger checks what plain SQL writes')),
    found AS (
        SELECT w.place, format('%s is %s (%s): %s', w.name, w.bad, s.source, w.without_it) AS finding,
               CASE WHEN s.source IN ('session', 'client') THEN format('SET %s = %s', w.name, w.good)
                    ELSE format('ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf()', w.name, w.good) END AS fix
          FROM wanted w JOIN pg_settings s USING (name)
         WHERE s.setting = w.bad AND s.source NOT IN ('database', 'user', 'database user')
        UNION ALL
        SELECT w.place, format('%s is %s for %s: %s', w.name, w.bad, whose.what, w.without_it), format('ALTER %s RESET %s', whose.what, w.name)
          FROM pg_db_role_setting d
         CROSS JOIN unnest(d.setconfig) AS config
          JOIN wanted w ON w.name = split_part(config, '=', 1)
         CROSS JOIN LATERAL (
            SELECT CASE WHEN d.setrole = 0 THEN format('DATABASE %I', current_database())
                        WHEN d.setdatabase = 0 THEN format('ROLE %I', pg_get_userbyid(d.setrole))
                        ELSE format('ROLE %I IN DATABASE %I', pg_get_userbyid(d.setrole), current_database()) END AS what) whose
         WHERE (split_part(config, '=', 2) = w.bad OR w.bad = 'off' AND split_part(config, '=', 2) IN ('false', 'no', '0'))
           AND d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))
        UNION ALL
        SELECT 8, format('autovacuum is off for %s: nobody removes its dead versions', c.oid::regclass), format('ALTER TABLE %s RESET (autovacuum_enabled)', c.oid::regclass)
          FROM pg_class c CROSS JOIN LATERAL pg_options_to_table(c.reloptions) o
         WHERE c.oid IN ('messages.message_rows'::regclass, 'messages.timer'::regclass) AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
        UNION ALL
        SELECT 9, format('pg_dump and pg_upgrade lock the %s tables and sequences of this database, and max_locks_per_transaction is %s: they fail some day',
                         locks.number, current_setting('max_locks_per_transaction')),
               format('ALTER SYSTEM SET max_locks_per_transaction = %s; -- then restart the server', messages.max_locks_for(locks.number))
          FROM (SELECT count(*) AS number FROM pg_class c
                 WHERE c.relkind IN ('r', 'p', 'S') AND c.relpersistence <> 't' AND c.relnamespace::regnamespace::text !~ '^(pg_|information_schema$)') locks
         WHERE messages.max_locks_for(locks.number) IS NOT NULL)
    SELECT CASE WHEN count(*) > 0 THEN 'warning' ELSE 'ok' END,
           coalesce(string_agg(f.finding, '; ' ORDER BY f.place), format('all %s settings that matter are as they should be', (SELECT count(*) + 2 FROM wanted))),
           string_agg(f.fix, '; ' ORDER BY f.place)
      FROM found f
$$;
COMMENT ON FUNCTION messages.health_settings() IS
    'A check of health(). Settings of the server, this database, its roles and this session that lose messages or keep dead versions, or leave too little room for the locks of a dump.';
