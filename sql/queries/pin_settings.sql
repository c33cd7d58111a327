-- The settings that the driver and the verbs rely on, whatever a role or database sets. A verb that waited for a lock reads again: in
-- the snapshot of its beginning it would miss what the others did. The driver parses times and durations of one style,
-- and sends arrays in which NULL is no text. A query and not an option at start-up, because PgBouncer refuses those.
-- Nothing is set behind a pooler, where the session is somebody else's next. There `run` is right all the same: it asks
-- for binary results, which have no style, and sends lists in binary, and it begins its transaction as READ COMMITTED if
-- that is not the default. Search path and time zone stay as they are.
SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.count(pg_catalog.set_config(pinned.name, pinned.value, false))
  FROM (VALUES ('default_transaction_isolation', 'read committed', '^read (un)?committed$'),
               ('DateStyle', 'ISO', '^ISO'),
               ('IntervalStyle', 'postgres', '^postgres$'),
               ('standard_conforming_strings', 'on', '^on$'),
               ('array_nulls', 'on', '^on$'),
               ('bytea_output', 'hex', '^hex$'),
               ('extra_float_digits', '1', '^[0-3]$')) AS pinned (name, value, good)
 WHERE pg_catalog.pg_backend_pid() = %s AND pg_catalog.current_setting(pinned.name) !~ pinned.good
