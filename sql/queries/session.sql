-- What a session needs before its work: that it is the right server process, with the settings that the driver relies on, and the rights.
-- core sends these when it connects, waits, or was refused; so do the listeners.

-- name: pin_settings
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

-- name: backend_pid
-- The process id of the session; a pooler tells its client another one.
SELECT pg_catalog.pg_backend_pid()

-- name: session_idle
-- How long a session has had no statement to work on; NULL while it has one, or if this login may not see it.
SELECT CASE WHEN a.state LIKE 'idle%%' THEN pg_catalog.clock_timestamp() - a.state_change END
  FROM pg_catalog.pg_stat_activity a
 WHERE a.pid = %s

-- name: refused_function
-- The first of these functions that the login may not call.
SELECT p.proname
  FROM unnest(%(functions)s::text[]) WITH ORDINALITY AS wanted (name, place)
  JOIN pg_catalog.pg_proc p ON p.proname = wanted.name AND p.pronamespace = to_regnamespace('messages')
 WHERE NOT has_function_privilege(p.oid, 'EXECUTE')
 ORDER BY wanted.place LIMIT 1

-- name: missing_right
-- What this login lacks to do what a group role may: a queue, if the login is limited to its queues; its own role, if it does not
-- inherit the roles that it is a member of; the group role; or, where the group role was not made, the privileges themselves.
SELECT CASE
    WHEN %(privilege)s::text IS NOT NULL AND pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
         AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE
        THEN format('SELECT messages.grant_queue(%%L, %%L, %%L)', %(queue_name)s::text, session_user, %(privilege)s::text)
    WHEN r.oid IS NULL
        THEN format('GRANT USAGE ON SCHEMA messages TO %%I', current_user) || CASE
            WHEN %(relation)s::text IS NOT NULL THEN format('; GRANT SELECT ON messages.%%I TO %%I', %(relation)s::text, current_user)
            WHEN %(function)s::text IS NOT NULL THEN format('; GRANT EXECUTE ON FUNCTION messages.%%I TO %%I', %(function)s::text, current_user)
            ELSE '' END
    WHEN NOT pg_has_role(r.oid, 'MEMBER') THEN format('GRANT %%I TO %%I', r.rolname, current_user)
    WHEN current_setting('server_version_num')::integer < 160000 THEN format('ALTER ROLE %%I INHERIT', current_user)
    ELSE format('GRANT %%I TO %%I WITH INHERIT TRUE', r.rolname, current_user) END
  FROM (VALUES ('messages_' || %(group)s::text)) AS wanted (name) LEFT JOIN pg_catalog.pg_roles r ON r.rolname = wanted.name
