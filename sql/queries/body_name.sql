-- What the names of bodies begin with that this database keeps elsewhere, and the time in them, some time ago.
SELECT format('%%s-%%s-', c.system_identifier, d.oid),
       to_char((clock_timestamp() - %s::interval) AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS')
  FROM pg_control_system() c CROSS JOIN pg_database d WHERE d.datname = current_database()
