CREATE OR REPLACE FUNCTION messages.health_held_snapshot(held_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- VACUUM keeps what a snapshot or a running transaction of this database may still see; the snapshot of another VACUUM does not count.
    WITH holder (name, age, transactions, unused, fix) AS (
        SELECT format('session %s (application %s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'without a name'), coalesce(a.state, 'state unknown')),
               coalesce(clock_timestamp() - a.xact_start, '0'), greatest(age(a.backend_xmin), age(a.backend_xid)), false, format('SELECT pg_terminate_backend(%s)', a.pid)
          FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
           AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v)
        UNION ALL
        SELECT format('prepared transaction %L of %s', p.gid, p.owner), clock_timestamp() - p.prepared, age(p.transaction), false,
               format('SELECT * FROM pg_prepared_xacts WHERE gid = %L -- then COMMIT PREPARED or ROLLBACK PREPARED, as whoever prepared it decides', p.gid)
          FROM pg_prepared_xacts p WHERE p.database = current_database()
        UNION ALL
        -- Slots and standbys do not say when they took their snapshot, only how many transactions ago.
        SELECT format('replication slot %s (%s)', s.slot_name, CASE WHEN s.active THEN 'active' ELSE 'nobody uses it' END),
               NULL, greatest(age(s.xmin), age(s.catalog_xmin)), NOT s.active,
               format('SELECT * FROM pg_replication_slots WHERE slot_name = %1$L -- start what reads it, or if nothing will: SELECT pg_drop_replication_slot(%1$L)', s.slot_name)
          FROM pg_replication_slots s
         WHERE (s.database = current_database() OR s.database IS NULL) AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
        UNION ALL
        SELECT format('standby %s (session %s, hot_standby_feedback)', coalesce(nullif(r.application_name, ''), 'without a name'), r.pid),
               NULL, age(r.backend_xmin), false, format('SELECT pg_terminate_backend(%s) -- and end the long query on the standby', r.pid)
          FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL),
    judged AS (
        SELECT h.*, CASE WHEN h.age > held_for * 12 OR h.age IS NULL AND h.transactions > 100000000 THEN 2
                         WHEN h.age > held_for OR h.age IS NULL AND h.transactions > 1000000 OR h.unused THEN 1 ELSE 0 END AS bad FROM holder h),
    worst AS (SELECT * FROM judged ORDER BY bad DESC, transactions DESC, age DESC NULLS LAST LIMIT 1),
    hidden AS (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database() AND a.backend_type IS NULL)
    SELECT CASE WHEN worst.bad = 2 THEN 'critical' WHEN worst.bad = 1 OR hidden.count > 0 THEN 'warning' ELSE 'ok' END,
           concat_ws('; ',
               CASE WHEN worst.name IS NULL THEN 'nothing holds a snapshot'
                    ELSE format('%s holds back VACUUM; transactions since: %s; open for %s; holders of a snapshot: %s',
                                worst.name, worst.transactions, coalesce(date_trunc('second', worst.age)::text, 'an unknown time'), (SELECT count(*) FROM holder)) END,
               CASE WHEN hidden.count > 0 THEN format('sessions of other roles that hide their age from role %s: %s', current_user, hidden.count) END),
           CASE WHEN worst.bad > 0 THEN worst.fix WHEN hidden.count > 0 THEN format('GRANT pg_monitor TO %I', current_user) END
      FROM hidden LEFT JOIN worst ON true
$$;
COMMENT ON FUNCTION messages.health_held_snapshot(interval) IS
    'A check of health(). What holds back VACUUM of this database the most: a session, a prepared transaction, a replication slot or a standby. The query of a session is never shown.';
