CREATE OR REPLACE FUNCTION messages.health_settings() RETURNS TABLE (severity text, finding text, cure text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH wanted (place, name, without_it) AS (VALUES
        (1, 'fsync', 'a crash of the machine loses or breaks data'),
        (2, 'full_page_writes', 'a crash of the machine breaks data'),
        (3, 'synchronous_commit', 'a crash loses publishes that were acknowledged'),
        (4, 'autovacuum', 'nobody removes dead versions'),
        (5, 'track_counts', 'autovacuum sees nothing to do'),
        (6, 'track_activities', 'nobody sees who holds a snapshot')),
    found AS (
        SELECT w.place, format('%s is off (%s): %s', w.name, s.source, w.without_it) AS finding,
               CASE WHEN s.source IN ('session', 'client') THEN format('SET %s = on', w.name)
                    ELSE format('ALTER SYSTEM SET %s = on; SELECT pg_reload_conf()', w.name) END AS cure
          FROM wanted w JOIN pg_settings s USING (name)
         WHERE s.setting = 'off' AND s.source NOT IN ('database', 'user', 'database user')
        UNION ALL
        SELECT w.place, format('%s is off for %s: %s', w.name, whose.what, w.without_it), format('ALTER %s RESET %s', whose.what, w.name)
          FROM pg_db_role_setting d
         CROSS JOIN unnest(d.setconfig) AS config
          JOIN wanted w ON w.name = split_part(config, '=', 1)
         CROSS JOIN LATERAL (
            SELECT CASE WHEN d.setrole = 0 THEN format('DATABASE %I', current_database())
                        WHEN d.setdatabase = 0 THEN format('ROLE %I', pg_get_userbyid(d.setrole))
                        ELSE format('ROLE %I IN DATABASE %I', pg_get_userbyid(d.setrole), current_database()) END AS what) whose
         WHERE split_part(config, '=', 2) IN ('off', 'false', 'no', '0')
           AND d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))
        UNION ALL
        SELECT 7, 'autovacuum is off for messages.message: nobody removes its dead versions, or the upkeep lets it rest while a snapshot is held', 'ALTER TABLE messages.message RESET (autovacuum_enabled)'
          FROM pg_class c CROSS JOIN LATERAL pg_options_to_table(c.reloptions) o
         WHERE c.oid = 'messages.message'::regclass AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)
    SELECT CASE WHEN count(*) > 0 THEN 'warning' ELSE 'ok' END,
           coalesce(string_agg(f.finding, '; ' ORDER BY f.place), format('all %s settings that matter are on', (SELECT count(*) + 1 FROM wanted))),
           string_agg(f.cure, '; ' ORDER BY f.place)
      FROM found f
$$;
COMMENT ON FUNCTION messages.health_settings() IS
    'A check of health(). Settings of the server, this database, its roles and this session that lose messages or keep dead versions.';
