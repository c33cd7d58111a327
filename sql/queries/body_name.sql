-- What the names of bodies begin with that this database keeps elsewhere, and the time in them, some time ago.
-- Years before Christ would be written without a sign, and so be later than all.
SELECT format('%%s-%%s-', c.system_identifier, d.oid),
       to_char((clock_timestamp() - least(%s::interval, '1000 years')) AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS')
  FROM pg_control_system() c CROSS JOIN pg_database d WHERE d.datname = current_database()
