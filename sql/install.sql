-- Installs or upgrades the queue: psql -v ON_ERROR_STOP=1 -f sql/install.sql "$DSN"
-- The setup DAG runs the same files in the same order: it reads the \ir lines of this one.
\set ON_ERROR_STOP on
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
\ir session.sql
\ir may_install.sql
\ir bootstrap.sql
\ir roles.sql

-- Migrations, each applied once; the next one is added here with the same four lines
SELECT NOT EXISTS (SELECT FROM messages.schema_migration WHERE version = 1) AS pending \gset
\if :pending
\ir migrations/0001_schema.sql
INSERT INTO messages.schema_migration (version, name) VALUES (1, 'schema');
\endif

-- Publish
\ir functions/publish/fair_keys.sql
\ir functions/publish/fair_front.sql
\ir functions/publish/fair_places.sql
\ir functions/publish/publish.sql
\ir functions/publish/insert_messages.sql
\ir functions/publish/publish_batch.sql
\ir functions/publish/remember_key.sql
\ir functions/publish/replace_waiting.sql
\ir functions/publish/publish_deduplicated.sql
\ir functions/publish/admit.sql
\ir functions/publish/check_publish.sql
\ir functions/publish/check_body.sql
\ir functions/publish/ring_for.sql
\ir functions/publish/ring.sql
\ir functions/publish/rings_are_paused.sql
\ir functions/publish/pause_rings.sql

-- Publish by topic
\ir functions/topics/publish_topic.sql
\ir functions/topics/route_topic.sql
\ir functions/topics/bind_topic.sql
\ir functions/topics/unbind_topic.sql
\ir functions/topics/check_topic.sql
\ir functions/topics/topic_regex.sql

-- Lease, renew, finish, give back
\ir functions/lease/lease.sql
\ir functions/lease/extend.sql
\ir functions/lease/archive.sql
\ir functions/lease/archive_and_lease.sql
\ir functions/lease/release.sql
\ir functions/lease/abandoned.sql
\ir functions/lease/deaths.sql
\ir functions/lease/release_messages.sql
\ir functions/lease/cancel.sql
\ir functions/lease/workers.sql
\ir functions/lease/oldest_leases.sql
\ir functions/lease/consume.sql
\ir functions/lease/once.sql
\ir functions/lease/check_lease.sql
\ir functions/lease/check_outcomes.sql
\ir functions/lease/take_first.sql
\ir functions/lease/prepare_lease.sql
\ir functions/lease/finish.sql
\ir functions/lease/leases_left.sql
\ir functions/lease/token_bucket.sql
\ir functions/lease/rate_left.sql
\ir functions/lease/limited_until.sql
\ir functions/lease/spend_rate.sql

-- Lanes and their marks: where a lease looks, and what makes it look elsewhere
\ir functions/lanes/look.sql
\ir functions/lanes/enter.sql
\ir functions/lanes/give_back.sql
\ir functions/lanes/correct_marks.sql
\ir functions/lanes/open_lane.sql
\ir functions/lanes/mend_lanes.sql
\ir functions/lanes/create_mark.sql
\ir functions/lanes/stored_time.sql
\ir functions/lanes/used_lanes.sql
\ir functions/lanes/store_time.sql
\ir functions/lanes/drop_unused_sequences.sql

-- Timers: what ends by itself
\ir functions/timers/end_due.sql
\ir functions/timers/archive_ended.sql
\ir functions/timers/mend_timers.sql

-- The doors: what the triggers of messages.message and messages.message_archive do for plain SQL
\ir functions/doors/message_published.sql
\ir functions/doors/message_changed.sql
\ir functions/doors/message_archived.sql
\ir functions/doors/check_times.sql

-- Hand over to DAG runs
\ir functions/dispatch/dispatch_messages.sql
\ir functions/dispatch/open_dispatches.sql
\ir functions/dispatch/lock_dispatch.sql
\ir functions/dispatch/start_dispatch.sql
\ir functions/dispatch/extend_dispatches.sql
\ir functions/dispatch/overdue_dispatches.sql
\ir functions/dispatch/record_task_failure.sql
\ir functions/dispatch/end_dispatch.sql
\ir functions/dispatch/dispatched_messages.sql
\ir functions/dispatch/reopen_dispatch.sql

-- Archive
\ir functions/archive/record_dead.sql
\ir functions/archive/error_pattern.sql
\ir functions/archive/fingerprint.sql
\ir functions/archive/search_messages.sql

-- Dead messages: requeue or dismiss
\ir functions/dead/lease_dead.sql
\ir functions/dead/extend_dead.sql
\ir functions/dead/release_dead.sql
\ir functions/dead/requeue.sql
\ir functions/dead/dismiss.sql
\ir functions/dead/requeue_dead.sql
\ir functions/dead/dismiss_dead.sql
\ir functions/dead/dead_ids.sql
\ir functions/dead/dead_queues.sql
\ir functions/dead/dead_causes.sql
\ir functions/dead/dead_trend.sql
\ir functions/dead/retried_causes.sql
\ir functions/dead/remedies.sql
\ir functions/dead/count_remedies.sql
\ir functions/dead/requeued_results.sql
\ir functions/dead/check_dead_lease.sql

-- Groups: one message at a time, in order
\ir functions/groups/next_of_groups.sql
\ir functions/groups/fill_groups.sql
\ir functions/groups/fair_turns.sql
\ir functions/groups/let_in.sql
\ir functions/groups/set_group_timers.sql
\ir functions/groups/join_groups.sql

-- Queues and their policy
\ir functions/queues/create_queue.sql
\ir functions/queues/alter_queue.sql
\ir functions/queues/pause_queue.sql
\ir functions/queues/resume_queue.sql
\ir functions/queues/purge_queue.sql
\ir functions/queues/drop_queue.sql
\ir functions/queues/delete_queue.sql
\ir functions/queues/status.sql
\ir functions/queues/next_ids.sql
\ir functions/queues/planned_messages.sql
\ir functions/queues/ready_queues.sql
\ir functions/queues/scan.sql
\ir functions/queues/lease_policy.sql
\ir functions/queues/closed_queues.sql
\ir functions/queues/check_queue.sql
\ir functions/queues/check_queue_name.sql
\ir functions/queues/raise_unknown_queue.sql

-- Roles and teams
\ir functions/roles/reads_all_bodies.sql
\ir functions/roles/extra_grants.sql
\ir functions/roles/keep_private.sql
\ir functions/roles/grant_queue.sql
\ir functions/roles/revoke_queue.sql
\ir functions/roles/queue_grants.sql
\ir functions/roles/granted_queues.sql
\ir functions/roles/find_role.sql
\ir functions/roles/session_is_limited.sql
\ir functions/roles/check_access.sql

-- Upkeep: what is due, records kept for a limited time
\ir functions/upkeep/upkeep.sql
\ir functions/upkeep/look_at_next.sql
\ir functions/upkeep/record_upkeep_step.sql
\ir functions/upkeep/delete_expired_records.sql
\ir functions/upkeep/purge_cron_history.sql

-- The archive's partitions and their retention
\ir functions/partitions/partition_archive.sql
\ir functions/partitions/archive_partitions.sql
\ir functions/partitions/make_archive_partitions.sql
\ir functions/partitions/adopt_archive_default.sql
\ir functions/partitions/apply_retention.sql
\ir functions/partitions/drop_and_record_partition.sql
\ir functions/partitions/set_archive_begin.sql
\ir functions/partitions/record_archive_removal.sql
\ir functions/partitions/closed_archive_partition.sql
\ir functions/partitions/closed_archive_partitions.sql
\ir functions/partitions/lock_export.sql
\ir functions/partitions/drop_archive_partition.sql
\ir functions/partitions/archive_checksums.sql

-- Health: one function for each check
\ir functions/health/health.sql
\ir functions/health/health_archive_partitions.sql
\ir functions/health/health_copy.sql
\ir functions/health/health_dead_messages.sql
\ir functions/health/health_dead_tuples.sql
\ir functions/health/health_grants.sql
\ir functions/health/health_held_snapshot.sql
\ir functions/health/health_history.sql
\ir functions/health/health_limited_roles.sql
\ir functions/health/health_notify_queue.sql
\ir functions/health/health_dispatches.sql
\ir functions/health/health_upkeep_lag.sql
\ir functions/health/health_upkeep_steps.sql
\ir functions/health/health_groups.sql
\ir functions/health/health_waiting_messages.sql

-- Runs of the pipelines
\ir functions/runs/begin_run.sql
\ir functions/runs/finish_run.sql
\ir functions/runs/run_summary.sql
\ir functions/runs/run_holder.sql
\ir functions/runs/run_backlog.sql
\ir functions/runs/run_archived.sql
\ir functions/runs/lock_publish_run.sql
\ir functions/runs/begin_publish_run.sql

-- Staged publishing
\ir functions/stages/stage_publish.sql
\ir functions/stages/publish_staged.sql
\ir functions/stages/lock_stage.sql
\ir functions/stages/check_stage_login.sql
\ir functions/stages/insert_staged.sql
\ir functions/stages/check_winners.sql
\ir functions/stages/drop_stage.sql
\ir functions/stages/drop_or_empty_stage.sql

-- The archive as a log
\ir functions/log/archive_log_end.sql
\ir functions/log/split_archive_log.sql

-- Metrics and history, as the upkeep records it
\ir functions/health/metrics.sql
\ir functions/history/queue_history.sql
\ir functions/history/queue_sparklines.sql
\ir functions/history/queue_rates.sql
\ir functions/history/message_life.sql
\ir functions/history/alter_history.sql
\ir functions/history/begin_history.sql
\ir functions/history/record_history.sql
\ir functions/history/count_history.sql
\ir functions/history/history_begins.sql
\ir functions/history/sum_durations.sql
\ir functions/history/history_steps.sql
\ir functions/history/delete_old_history.sql
\ir functions/history/duration_quantile.sql

-- What was done by hand
\ir functions/audit/act_for.sql
\ir functions/audit/publish_test.sql
\ir functions/audit/audit_log.sql
\ir functions/audit/record_audit.sql

-- A copy of the queue that continues by itself
\ir functions/upgrade/take_over.sql

-- Checks of arguments
\ir functions/checks/check_batch.sql
\ir functions/checks/check_duration.sql
\ir functions/checks/check_read_committed.sql
\ir functions/checks/check_length.sql
\ir functions/checks/check_choice.sql
\ir functions/checks/check_no_dedup.sql
\ir functions/checks/json_bytes.sql
\ir functions/checks/check_headers.sql
\ir functions/checks/check_reference.sql
\ir functions/checks/check_result.sql
\ir functions/checks/check_number.sql

-- Locks that are waited for briefly, and room for many
\ir functions/locks/lock_briefly.sql
\ir functions/locks/lock_queue.sql
\ir functions/locks/lock_row.sql
\ir functions/locks/raise_in_use.sql
\ir functions/locks/max_locks_for.sql
\ir functions/locks/check_lock_room.sql

-- Versions of the schema
\ir functions/upgrade/schema_version.sql
\ir functions/upgrade/latest_migration.sql

-- pg_cron
\ir cron/install_cron.sql
\ir cron/prepare_cron_role.sql
\ir cron/expect_cron.sql
\ir cron/uninstall_cron.sql
\ir cron/upkeep_mode.sql
\ir cron/show_cron_jobs_to_owner.sql
\ir cron/health_cron_jobs.sql
\ir cron/health_cron_history.sql
\ir cron/cron_database.sql

\ir triggers.sql

-- Views, and the function that returns rows of one
\ir views/session_reach.sql
\ir views/queue_overview.sql
\ir views/message_overview.sql
\ir views/dispatch_overview.sql
\ir views/archive_overview.sql
\ir views/archive_retention.sql
\ir functions/archive/message_outcomes.sql
\ir functions/archive/outcome_counts.sql

-- Owner, first rows, grants
\ir owner.sql
\ir seed.sql
\ir grants.sql
\if :{?cron_role}
SELECT messages.install_cron(run_as => :'cron_role');
\endif
COMMIT;
