-- Installs or upgrades the queue: psql -v ON_ERROR_STOP=1 -f sql/install.sql "$DSN"
-- The setup DAG runs the same files in the same order: it reads the \ir lines of this one.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL lock_timeout = '30s';
SET LOCAL check_function_bodies = off;
SET LOCAL client_min_messages = warning;
DO $$ BEGIN PERFORM pg_advisory_xact_lock(hashtextextended('messages.migrate', 0)); END $$;
\ir bootstrap.sql

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 1) AS pending \gset
\if :pending
\ir migrations/0001_tables.sql
INSERT INTO messages.schema_migration (version, name) VALUES (1, 'tables');
\endif

\ir functions/add_band.sql
\ir functions/adopt_archive_default.sql
\ir functions/alter_queue.sql
\ir functions/archive.sql
\ir functions/check_dead_lease.sql
\ir functions/check_duration.sql
\ir functions/check_policy.sql
\ir functions/check_publish.sql
\ir functions/consumable_queue.sql
\ir functions/consume.sql
\ir functions/create_queue.sql
\ir functions/dead_message.sql
\ir functions/dead_queues.sql
\ir functions/dismiss.sql
\ir functions/extend.sql
\ir functions/health.sql
\ir functions/health_archive_partitions.sql
\ir functions/health_cron_history.sql
\ir functions/health_cron_job.sql
\ir functions/health_dead_messages.sql
\ir functions/health_dead_tuples.sql
\ir functions/health_held_snapshot.sql
\ir functions/health_history.sql
\ir functions/health_index_bloat.sql
\ir functions/health_notify_queue.sql
\ir functions/health_prepared_transaction.sql
\ir functions/health_replication.sql
\ir functions/health_settings.sql
\ir functions/health_upkeep_lag.sql
\ir functions/health_waiting_messages.sql
\ir functions/health_wraparound.sql
\ir functions/lease.sql
\ir functions/lease_dead.sql
\ir functions/lease_taken_over.sql
\ir functions/make_archive_partitions.sql
\ir functions/mark.sql
\ir functions/new_message.sql
\ir functions/publish.sql
\ir functions/publish_batch.sql
\ir functions/purge_cron_history.sql
\ir functions/raise_unknown_queue.sql
\ir functions/ready_queues.sql
\ir functions/release.sql
\ir functions/requeue.sql
\ir functions/requeue_dead.sql
\ir functions/ring.sql
\ir functions/schema_version.sql
\ir functions/set_mark.sql
\ir functions/status.sql
\ir functions/sweep.sql
\ir functions/sweep_all.sql
\ir functions/take.sql
\ir functions/upkeep.sql

\ir cron/install_cron.sql
\ir cron/uninstall_cron.sql
\ir cron/upkeep_mode.sql

\ir triggers/dead_message.sql
\ir triggers/lease_taken_over.sql
\ir triggers/new_message.sql

\ir views/archive_overview.sql
\ir views/message_overview.sql
\ir views/result_count.sql

\ir seed.sql
\ir grants.sql
COMMIT;
