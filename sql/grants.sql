-- Who may call what, and what nobody may call: the one list. It runs at every installation, so it covers what a new version
-- adds, and fails if it names no function or if a new function is missing from it.
DO $$
DECLARE
    listed CONSTANT text[] := ARRAY[
        -- every means each group role, and whoever was granted anything by hand. messages_admin may call all but the internal ones.
        ['publisher', 'publish publish_batch publish_deduplicated publish_topic route_topic'],
        ['publisher', 'stage_publish publish_staged drop_stage'],
        ['consumer', 'lease abandoned deaths lease_policy extend release consume once archive archive_and_lease'],
        ['consumer', 'dispatch_messages open_dispatches start_dispatch extend_dispatches overdue_dispatches record_task_failure end_dispatch dispatched_messages'],
        ['consumer', 'lease_dead extend_dead release_dead requeue dismiss requeue_dead dismiss_dead dead_ids'],
        ['consumer', 'remedies count_remedies requeued_results'],
        ['consumer observer', 'message_outcomes outcome_counts status ready_queues closed_queues dead_queues dead_causes'],
        ['consumer observer upkeep pipeline', 'scan'],
        ['consumer observer', 'queue_history queue_rates queue_sparklines dead_trend retried_causes workers'],
        ['observer', 'message_life audit_log search_messages next_ids'],
        ['consumer', 'release_messages'],
        ['consumer', 'cancel'],
        ['observer', 'metrics'],
        ['publisher consumer', 'act_for'],
        ['publisher', 'publish_test'],
        ['observer upkeep', 'health'],
        ['upkeep', 'upkeep look_at_next install_cron uninstall_cron expect_cron purge_cron_history'],
        -- messages_pipeline is a member of messages_reader.
        ['observer reader', 'archive_partitions'],
        ['reader', 'archive_log_end split_archive_log'],
        ['pipeline', 'begin_run finish_run run_summary run_holder run_backlog run_archived'],
        ['pipeline', 'closed_archive_partitions archive_checksums lock_export drop_archive_partition'],
        ['publisher consumer observer upkeep', 'session_is_limited granted_queues'],
        ['every', 'schema_version latest_migration upkeep_mode'],
        ['admin', 'create_queue alter_queue pause_queue resume_queue purge_queue drop_queue bind_topic unbind_topic'],
        ['admin', 'alter_history grant_queue revoke_queue queue_grants partition_archive apply_retention adopt_archive_default take_over'],
        -- What these do may change with any version.
        ['internal', 'check_publish insert_messages fair_keys fair_front fair_places remember_key replace_waiting admit ring_for ring rings_are_paused pause_rings check_topic topic_regex'],
        ['internal', 'reopen_dispatch lock_dispatch check_lease check_outcomes take_first prepare_lease finish leases_left limited_until token_bucket rate_left spend_rate oldest_leases record_dead'],
        ['internal', 'look correct_marks enter give_back used_lanes open_lane mend_lanes create_mark stored_time store_time drop_unused_sequences'],
        ['internal', 'end_due archive_ended mend_timers message_published message_changed message_archived check_times'],
        ['internal', 'check_dead_lease set_group_timers let_in fair_turns next_of_groups fill_groups join_groups'],
        ['internal', 'check_queue check_queue_name raise_unknown_queue delete_queue planned_messages'],
        ['internal', 'find_role reads_all_bodies extra_grants keep_private check_access delete_expired_records record_upkeep_step'],
        ['internal', 'make_archive_partitions drop_and_record_partition set_archive_begin record_archive_removal'],
        ['internal', 'closed_archive_partition lock_publish_run begin_publish_run drop_or_empty_stage insert_staged'],
        ['internal', 'health_archive_partitions health_cron_history health_cron_jobs health_dead_messages health_dead_tuples health_grants'],
        ['internal', 'health_held_snapshot health_history health_limited_roles health_notify_queue'],
        ['internal', 'health_dispatches health_groups health_upkeep_lag health_upkeep_steps health_waiting_messages'],
        ['internal', 'cron_database prepare_cron_role show_cron_jobs_to_owner check_batch check_duration check_length check_choice check_number check_read_committed'],
        ['internal', 'error_pattern fingerprint check_winners check_no_dedup check_headers check_reference check_result json_bytes check_body lock_briefly lock_queue lock_row lock_stage check_stage_login max_locks_for check_lock_room raise_in_use'],
        ['internal', 'begin_history record_history count_history history_steps history_begins'],
        ['internal', 'delete_old_history sum_durations duration_quantile record_audit'],
        ['internal', 'health_copy']];
    groups CONSTANT text[] := ARRAY['publisher', 'consumer', 'observer', 'upkeep', 'raw', 'reader', 'pipeline', 'admin', 'limited'];
    change text;
BEGIN
    FOR change IN
        SELECT CASE WHEN p.oid IS NULL THEN format('grants.sql names messages.%s, and there is no such function', name)
                    ELSE format('function %s is not in the list of grants.sql', p.oid::regprocedure) END
          FROM (SELECT string_to_table(listed[place][2], ' ') AS name FROM generate_subscripts(listed, 1) AS place) AS known
          FULL JOIN (SELECT * FROM pg_proc WHERE pronamespace = 'messages'::regnamespace) p ON p.proname = known.name
         -- A function that this list never saw has no privileges yet. What an earlier version left has some.
         WHERE p.oid IS NULL OR (known.name IS NULL AND p.proacl IS NULL)
         ORDER BY 1 LIMIT 1
    LOOP
        RAISE EXCEPTION '%', change USING ERRCODE = 'invalid_grant_operation',
            HINT = 'Name each function of the schema once: for a role, or as internal. Put your own functions in another schema.';
    END LOOP;
    -- Revoke everything from PUBLIC, and what ALTER DEFAULT PRIVILEGES or anybody else gave beyond the grants that are allowed by hand.
    FOR change IN SELECT e.command FROM messages.extra_grants() e LOOP
        EXECUTE change;
    END LOOP;
    FOR change IN
        WITH function AS (
            SELECT p.oid, p.proname, p.proowner, p.proacl FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace),
        granted AS (
            SELECT f.oid, a.grantee,
                   a.grantee = ANY (SELECT to_regrole('messages_' || name) FROM unnest(groups) AS name) AS to_group
              FROM function f CROSS JOIN aclexplode(f.proacl) a WHERE a.grantee NOT IN (0, f.proowner)),
        allowed AS (
            SELECT name, role FROM generate_subscripts(listed, 1) AS place
             CROSS JOIN string_to_table(listed[place][2], ' ') AS name CROSS JOIN string_to_table(listed[place][1], ' ') AS role),
        wanted AS (
            SELECT to_regrole('messages_' || g.role)::oid AS grantee, f.oid
              FROM allowed a JOIN function f ON f.proname = a.name
              JOIN unnest(groups) AS g (role) ON g.role = a.role OR g.role <> 'limited' AND a.role = 'every'
                                              OR g.role = 'admin' AND a.role <> 'internal'
             WHERE to_regrole('messages_' || g.role) IS NOT NULL
            UNION
            SELECT g.grantee, f.oid FROM granted g JOIN function f
                ON f.proname IN (SELECT a.name FROM allowed a WHERE a.role = 'every')
             WHERE NOT g.to_group AND f.proowner <> g.grantee)
        SELECT format(CASE WHEN g.oid IS NULL THEN 'GRANT EXECUTE ON FUNCTION %s TO %s' ELSE 'REVOKE ALL ON FUNCTION %s FROM %s' END,
                      oid::regprocedure, grantee::regrole)
          FROM wanted w FULL JOIN granted g USING (grantee, oid)
         WHERE g.oid IS NULL OR (w.oid IS NULL AND g.to_group)
         ORDER BY oid::regprocedure::text, grantee::regrole::text
    LOOP
        EXECUTE change;
    END LOOP;
    FOR change IN
        SELECT format('GRANT %s TO %I', privilege, 'messages_' || name)
          FROM (VALUES
            -- messages_limited can do nothing by itself, but it must not be dropped while a database relies on it.
            ('USAGE ON SCHEMA messages', groups),
            ('SELECT ON messages.queue_overview', '{observer,reader,admin}'),
            ('SELECT ON messages.message_overview, messages.dispatch_overview', '{observer,admin}'),
            ('SELECT ON messages.archive_overview', '{observer,admin}'),
            -- Whole tables, bodies too, by ranges of pages.
            ('SELECT ON messages.message, messages.message_archive', '{reader}'),
            -- The conventions for plain SQL: sql/README.md
            ('SELECT, INSERT, UPDATE, DELETE ON messages.message', '{raw}'),
            ('SELECT, INSERT ON messages.message_archive', '{raw}'),
            ('USAGE ON SEQUENCE messages.message_id_seq', '{raw}')) AS tables (privilege, roles)
         CROSS JOIN unnest(roles) AS name
         WHERE to_regrole('messages_' || name) IS NOT NULL
    LOOP
        EXECUTE change;
    END LOOP;
    PERFORM messages.show_cron_jobs_to_owner();
END $$;
