-- Installs or upgrades the queue: psql -v ON_ERROR_STOP=1 -f sql/install.sql "$DSN"
-- The setup DAG runs the same files in the same order: it reads the \ir lines of this one.
\set ON_ERROR_STOP on
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
\ir session.sql
\ir may_install.sql
\ir bootstrap.sql
\ir roles.sql

-- Migrations, each applied once; the next migration is added here with the same five lines
SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 1) AS pending \gset
\if :pending
\ir migrations/0001_schema.sql
INSERT INTO messages.schema_migration (version, name) VALUES (1, 'schema');
\endif

-- Views and functions, replaced at every installation. The head of a chapter says what it is about.
-- Where a plan matters, a function has one of two lists of settings. force_generic_plan walks the indexes of the queue in their order,
-- whatever the statistics say, and plans once. force_custom_plan plans for what is asked of the archive, at each call. Both are without
-- jit: PostgreSQL adds so much to the cost of a plan that was ruled out that it would compile for seconds.
\ir chapters/views.sql
\ir chapters/checks.sql
\ir chapters/publish.sql
\ir chapters/lease.sql
\ir chapters/lanes.sql
\ir chapters/groups.sql
\ir chapters/doors.sql
\ir chapters/queues.sql
\ir chapters/topics.sql
\ir chapters/dead.sql
\ir chapters/causes.sql
\ir chapters/archive.sql
\ir chapters/partitions.sql
\ir chapters/dispatch.sql
\ir chapters/spark.sql
\ir chapters/history.sql
\ir chapters/maintenance.sql
\ir chapters/cron.sql
\ir chapters/access.sql
\ir chapters/audit.sql
\ir chapters/status.sql
\ir chapters/health.sql

-- Owner, first rows, grants
\ir owner.sql
\ir seed.sql
\ir grants.sql
\if :{?cron_role}
SELECT messages.install_cron(run_as => :'cron_role');
\endif
COMMIT;
