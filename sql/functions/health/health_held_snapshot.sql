CREATE OR REPLACE FUNCTION messages.health_held_snapshot(held_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- VACUUM keeps what a snapshot or a running transaction of this database may still see; the snapshot of another VACUUM does not count.
    WITH holder AS (
        SELECT a.pid, a.application_name, a.state, a.backend_type, clock_timestamp() - a.xact_start AS age,
               greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
          FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
           AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v)),
    oldest AS (SELECT * FROM holder ORDER BY transactions DESC, age DESC NULLS LAST LIMIT 1),
    hidden AS (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database() AND a.backend_type IS NULL)
    SELECT CASE WHEN oldest.age > held_for * 12 THEN 'critical' WHEN oldest.age > held_for OR hidden.count > 0 THEN 'warning' ELSE 'ok' END,
           concat_ws('; ',
               CASE WHEN oldest.pid IS NULL THEN 'no session holds a snapshot'
                    ELSE format('session %s (application %s, %s) holds back VACUUM; transactions since: %s; its own has been open for %s; sessions with a snapshot: %s',
                                oldest.pid, coalesce(nullif(oldest.application_name, ''), 'without a name'), coalesce(oldest.state, 'state unknown'),
                                oldest.transactions, coalesce(date_trunc('second', oldest.age)::text, 'an unknown time'),
                                (SELECT count(*) FROM holder)) END,
               CASE WHEN hidden.count > 0 THEN format('sessions of other roles that hide their age from role %s: %s', current_user, hidden.count) END),
           CASE WHEN oldest.age > held_for THEN format('SELECT pg_terminate_backend(%s)', oldest.pid)
                WHEN hidden.count > 0 THEN format('GRANT pg_monitor TO %I', current_user) END
      FROM hidden LEFT JOIN oldest ON true
$$;
COMMENT ON FUNCTION messages.health_held_snapshot(interval) IS
    'A check of health(). The session that holds back VACUUM of this database the most. Its query is never shown.';
