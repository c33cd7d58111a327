-- Settings, as this session has them, that lose messages or keep dead versions, and too little room for the locks of a dump.
SELECT format('%s is %s (%s): %s', w.name, s.setting, s.source, w.without_it), format('set %s = %s', w.name, w.good)
  FROM (VALUES
    ('fsync', 'off', 'on', 'a crash of the machine loses or breaks data'),
    ('full_page_writes', 'off', 'on', 'a crash of the machine breaks data'),
    ('synchronous_commit', 'off', 'on', 'a crash loses publishes that were acknowledged'),
    ('autovacuum', 'off', 'on', 'nobody removes dead versions'),
    ('track_counts', 'off', 'on', 'autovacuum sees nothing to do'),
    ('track_activities', 'off', 'on', 'nobody sees who holds a snapshot'),
    ('session_replication_role', 'replica', 'origin', 'no trigger checks what plain SQL writes')) AS w (name, bad, good, without_it)
  JOIN pg_catalog.pg_settings s ON s.name = w.name AND s.setting = w.bad
UNION ALL
SELECT format('pg_dump and pg_upgrade lock the %s tables and sequences of this database, and max_locks_per_transaction is %s: they fail some day',
              locks.number, current_setting('max_locks_per_transaction')),
       format('set max_locks_per_transaction = %s and restart the server', ceil(4.0 * locks.number / room.sessions / 64) * 64)
  FROM (SELECT count(*) AS number FROM pg_catalog.pg_class c
         WHERE c.relkind IN ('r', 'p', 'S') AND c.relpersistence <> 't' AND c.relnamespace::regnamespace::text !~ '^(pg_|information_schema$)') locks
 CROSS JOIN (SELECT current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions) room
 WHERE locks.number > current_setting('max_locks_per_transaction')::bigint * room.sessions / 2
