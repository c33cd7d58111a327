-- What an installation asks before it begins, and records. core.migrations, core.installation and cli.install send these.

-- name: is_installed
-- One row if there is a schema of the queue.
SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'messages'

-- name: is_superuser
-- One row if this login is a superuser.
SELECT FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper

-- name: is_owned
-- One row if the schema belongs to the role that should own it.
SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'messages' AND nspowner = to_regrole('messages_owner')

-- name: right_to_make_roles
-- The statement that lets this login make, or belong to, the roles of the queue.
SELECT CASE WHEN to_regrole('messages_owner') IS NULL THEN format('ALTER ROLE %I CREATEROLE', current_user)
            ELSE format('GRANT messages_owner TO %I', current_user) END

-- name: applied_migrations
-- The numbers of the migrations that were applied.
SELECT version FROM messages.schema_migration

-- name: record_migration
-- Records that a migration was applied.
INSERT INTO messages.schema_migration (version, name) VALUES (%s, %s)

-- name: versions
-- The newest migration, and the oldest version whose packages may work next to it.
SELECT messages.latest_migration(), messages.schema_version()

-- name: install_cron
-- A superuser has to name a login for the jobs.
SELECT messages.install_cron(
    CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN 'messages_cron' END);

-- name: uninstall_cron
-- Nothing happens where pg_cron does no maintenance.
SELECT messages.uninstall_cron();

-- name: has_tables
-- One row if the messages are in tables: to count what is in a view would run what somebody wrote.
SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = to_regnamespace('messages')
   AND c.relname IN ('message', 'message_archive') AND c.relkind IN ('r', 'p') HAVING count(*) = 2

-- name: messages_to_remove
-- How many messages go with the schema: unfinished, and archived.
SELECT (SELECT count(*) FROM messages.message), (SELECT count(*) FROM messages.message_archive)
