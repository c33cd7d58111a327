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

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 4) AS pending \gset
\if :pending
\ir migrations/0004_schedules.sql
INSERT INTO messages.schema_migration (version, name) VALUES (4, 'schedules');
\endif

\ir functions/add_band.sql
\ir functions/alter_queue.sql
\ir functions/archive.sql
\ir functions/check_dead_lease.sql
\ir functions/check_duration.sql
\ir functions/check_policy.sql
\ir functions/check_publish.sql
\ir functions/check_schedule.sql
\ir functions/consumable_queue.sql
\ir functions/consume.sql
\ir functions/create_queue.sql
\ir functions/cron_field.sql
\ir functions/cron_matches.sql
\ir functions/cron_ticks.sql
\ir functions/dead_message.sql
\ir functions/dead_queues.sql
\ir functions/dismiss.sql
\ir functions/extend.sql
\ir functions/lease.sql
\ir functions/lease_dead.sql
\ir functions/lease_taken_over.sql
\ir functions/make_archive_partitions.sql
\ir functions/mark.sql
\ir functions/new_message.sql
\ir functions/next_tick.sql
\ir functions/parse_cron.sql
\ir functions/pause_schedule.sql
\ir functions/publish.sql
\ir functions/publish_batch.sql
\ir functions/purge_cron_history.sql
\ir functions/raise_unknown_queue.sql
\ir functions/raise_unknown_schedule.sql
\ir functions/ready_queues.sql
\ir functions/release.sql
\ir functions/requeue.sql
\ir functions/requeue_dead.sql
\ir functions/resume_schedule.sql
\ir functions/ring.sql
\ir functions/run_schedules.sql
\ir functions/run_schedules_at.sql
\ir functions/schedule.sql
\ir functions/schedules.sql
\ir functions/schema_version.sql
\ir functions/set_mark.sql
\ir functions/status.sql
\ir functions/sweep.sql
\ir functions/sweep_all.sql
\ir functions/take.sql
\ir functions/unschedule.sql
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
