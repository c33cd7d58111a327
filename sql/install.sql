-- Installs or upgrades the queue: psql -v ON_ERROR_STOP=1 -f sql/install.sql "$DSN"
-- The setup DAG runs the same files in the same order: it reads the \ir lines of this one.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL lock_timeout = '30s';
SET LOCAL check_function_bodies = off;
SET LOCAL client_min_messages = warning;
DO $$ BEGIN PERFORM pg_advisory_xact_lock(hashtextextended('messages.migrate', 0)); END $$;
\ir bootstrap.sql
\ir roles.sql

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 1) AS pending \gset
\if :pending
\ir migrations/0001_tables.sql
INSERT INTO messages.schema_migration (version, name) VALUES (1, 'tables');
\endif

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 2) AS pending \gset
\if :pending
\ir migrations/0002_policy_groups_dedup.sql
INSERT INTO messages.schema_migration (version, name) VALUES (2, 'policy_groups_dedup');
\endif

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 3) AS pending \gset
\if :pending
\ir migrations/0003_queue_grants.sql
INSERT INTO messages.schema_migration (version, name) VALUES (3, 'queue_grants');
\endif

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 4) AS pending \gset
\if :pending
\ir migrations/0004_schedules.sql
INSERT INTO messages.schema_migration (version, name) VALUES (4, 'schedules');
\endif

SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 5) AS pending \gset
\if :pending
\ir migrations/0005_pipeline.sql
INSERT INTO messages.schema_migration (version, name) VALUES (5, 'pipeline');
\endif

\ir functions/add_band.sql
\ir functions/add_room.sql
\ir functions/adopt_archive_default.sql
\ir functions/alter_queue.sql
\ir functions/apply_retention.sql
\ir functions/archive.sql
\ir functions/archive_checksums.sql
\ir functions/archive_log_end.sql
\ir functions/archive_log_steps.sql
\ir functions/archive_partitions.sql
\ir functions/begin_archive.sql
\ir functions/begin_run.sql
\ir functions/bind_topic.sql
\ir functions/causes.sql
\ir functions/check_access.sql
\ir functions/check_batch.sql
\ir functions/check_dead_lease.sql
\ir functions/check_duration.sql
\ir functions/check_isolation.sql
\ir functions/check_key.sql
\ir functions/check_lease.sql
\ir functions/check_number.sql
\ir functions/check_outcomes.sql
\ir functions/check_policy.sql
\ir functions/check_publish.sql
\ir functions/check_queue.sql
\ir functions/check_queue_name.sql
\ir functions/check_run.sql
\ir functions/check_run_owner.sql
\ir functions/check_schedule.sql
\ir functions/check_topic.sql
\ir functions/closed_archive_partition.sql
\ir functions/consume.sql
\ir functions/count_leases.sql
\ir functions/create_queue.sql
\ir functions/cron_field.sql
\ir functions/cron_matches.sql
\ir functions/cron_ticks.sql
\ir functions/dead_causes.sql
\ir functions/dead_ids.sql
\ir functions/dead_queues.sql
\ir functions/dismiss.sql
\ir functions/drop_archive_partition.sql
\ir functions/drop_queue.sql
\ir functions/drop_stage.sql
\ir functions/extend.sql
\ir functions/extend_dead.sql
\ir functions/fingerprint.sql
\ir functions/finish_run.sql
\ir functions/forget.sql
\ir functions/forget_claims.sql
\ir functions/free_leases.sql
\ir functions/grant_queue.sql
\ir functions/granted_queues.sql
\ir functions/grantee.sql
\ir functions/group_lock.sql
\ir functions/heal_groups.sql
\ir functions/health.sql
\ir functions/health_archive_partitions.sql
\ir functions/health_cron_history.sql
\ir functions/health_cron_home.sql
\ir functions/health_cron_jobs.sql
\ir functions/health_dead_messages.sql
\ir functions/health_dead_tuples.sql
\ir functions/health_held_snapshot.sql
\ir functions/health_history.sql
\ir functions/health_index_bloat.sql
\ir functions/health_notify_queue.sql
\ir functions/health_prepared_transaction.sql
\ir functions/health_replication.sql
\ir functions/health_schedules.sql
\ir functions/health_settings.sql
\ir functions/health_upkeep_lag.sql
\ir functions/health_waiting_messages.sql
\ir functions/health_wraparound.sql
\ir functions/is_quiet.sql
\ir functions/latest_migration.sql
\ir functions/lease.sql
\ir functions/lease_claimed.sql
\ir functions/lease_dead.sql
\ir functions/lease_taken_over.sql
\ir functions/limited.sql
\ir functions/line_up.sql
\ir functions/make_archive_partitions.sql
\ir functions/mark.sql
\ir functions/message_archived.sql
\ir functions/new_message.sql
\ir functions/next_tick.sql
\ir functions/note_gone.sql
\ir functions/once.sql
\ir functions/parse_cron.sql
\ir functions/partition_archive.sql
\ir functions/pause_queue.sql
\ir functions/pause_schedule.sql
\ir functions/promote.sql
\ir functions/promote_missed.sql
\ir functions/publish.sql
\ir functions/publish_batch.sql
\ir functions/publish_deduplicated.sql
\ir functions/publish_run.sql
\ir functions/publish_staged.sql
\ir functions/publish_topic.sql
\ir functions/purge_cron_history.sql
\ir functions/purge_queue.sql
\ir functions/queue_grants.sql
\ir functions/raise_unknown_queue.sql
\ir functions/raise_unknown_schedule.sql
\ir functions/ready_queues.sql
\ir functions/record_causes.sql
\ir functions/record_traffic.sql
\ir functions/release.sql
\ir functions/release_dead.sql
\ir functions/remove_archive_partition.sql
\ir functions/remove_stage.sql
\ir functions/replay.sql
\ir functions/requeue.sql
\ir functions/requeue_dead.sql
\ir functions/require_queues.sql
\ir functions/rest_vacuum.sql
\ir functions/resume_queue.sql
\ir functions/resume_schedule.sql
\ir functions/revoke_queue.sql
\ir functions/ring.sql
\ir functions/route_topic.sql
\ir functions/run_archived.sql
\ir functions/run_backlog.sql
\ir functions/run_schedules.sql
\ir functions/run_schedules_at.sql
\ir functions/run_summary.sql
\ir functions/schedule.sql
\ir functions/schedules.sql
\ir functions/schema_version.sql
\ir functions/set_mark.sql
\ir functions/stage_publish.sql
\ir functions/status.sql
\ir functions/sweep.sql
\ir functions/sweep_all.sql
\ir functions/sweep_band.sql
\ir functions/take_room.sql
\ir functions/topic_regex.sql
\ir functions/traffic_kept.sql
\ir functions/traffic_report.sql
\ir functions/traffic_windows.sql
\ir functions/unbind_topic.sql
\ir functions/unschedule.sql
\ir functions/upkeep.sql

\ir cron/install_cron.sql
\ir cron/open_cron.sql
\ir cron/uninstall_cron.sql
\ir cron/upkeep_mode.sql

\ir triggers/lease_taken_over.sql
\ir triggers/message_archived.sql
\ir triggers/new_message.sql

\ir views/session_reach.sql
\ir views/archive_overview.sql
\ir views/message_overview.sql
\ir views/result_count.sql

\ir functions/search_archive.sql

\ir superseded.sql
\ir owner.sql
\ir seed.sql
\ir grants.sql
COMMIT;
