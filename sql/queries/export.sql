-- The export of archive partitions. export sends these; pipelines on Spark share its connections.

-- name: room
-- How many more sessions the server takes from this login, by the limits of the server, the database and the role.
SELECT least(
           current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
               - coalesce(current_setting('reserved_connections', true)::int, 0)
               - (SELECT sum(d.numbackends) FROM pg_stat_database d),
           (SELECT d.datconnlimit - s.numbackends FROM pg_database d JOIN pg_stat_database s ON s.datid = d.oid
             WHERE d.datname = current_database() AND d.datconnlimit >= 0),
           (SELECT r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid)
              FROM pg_roles r WHERE r.rolname = session_user AND r.rolconnlimit >= 0))::int

-- name: lock_export
-- Whether no other export works on a partition: a lock of this transaction, which may then last for hours.
SELECT messages.lock_export(%s)
  FROM (SELECT count(set_config(name, '0', true)) FROM pg_settings
         WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')) AS unlimited
