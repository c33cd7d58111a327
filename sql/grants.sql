-- Nothing for PUBLIC; runs after every migrate, so it covers what a new version added.
REVOKE ALL ON ALL TABLES IN SCHEMA messages FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA messages FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA messages FROM PUBLIC;
REVOKE ALL ON TYPE messages.leased_message, messages.leased_dead_message, messages.queue_status FROM PUBLIC;

-- Who may call what: the one list. Names that do not exist are skipped; messages_admin may call all that is not internal.
DO $$
DECLARE
    change text;
BEGIN
    FOR change IN
        WITH listed (groups, functions) AS (VALUES
            ('publisher', 'publish publish_batch publish_deduplicated publish_topic route_topic'),
            ('publisher', 'stage_publish publish_staged drop_stage'),
            ('consumer', 'lease extend archive release consume once lease_named end_named_leases'),
            ('consumer', 'dead_ids lease_dead extend_dead release_dead requeue dismiss requeue_dead'),
            ('consumer', 'remedies count_remedies requeued_results'),
            ('consumer observer', 'status ready_queues dead_queues dead_causes'),
            ('observer', 'search_archive schedules traffic_report'),
            ('observer upkeep', 'health'),
            ('upkeep', 'upkeep run_schedules install_cron uninstall_cron'),
            -- messages_pipeline is a member of messages_reader.
            ('observer reader', 'archive_partitions'),
            ('reader', 'archive_log_end archive_log_steps'),
            ('pipeline', 'begin_run finish_run run_summary run_backlog run_archived'),
            ('pipeline', 'archive_checksums drop_archive_partition'),
            ('pipeline', 'record_triage_causes fingerprint'),
            ('consumer observer pipeline', 'triage_causes'),
            ('pipeline', 'record_traffic replay traffic_windows require_queues'),
            ('publisher consumer observer upkeep', 'session_is_limited granted_queues'),
            ('publisher consumer observer upkeep raw reader pipeline', 'schema_version latest_migration compatible_version upkeep_mode')),
        function AS (
            SELECT p.oid, p.proname, p.proowner, p.proacl, coalesce(obj_description(p.oid, 'pg_proc'), '') LIKE 'Internal.%'
                OR coalesce(obj_description(p.oid, 'pg_proc'), '') LIKE 'Internal,%' AS internal
              FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace),
        -- What was granted by hand before this installation, which may have dropped and created functions.
        kept AS (
            SELECT r.oid AS grantee, k.proname
              FROM jsonb_to_recordset(coalesce(nullif(current_setting('messages.kept_grants', true), ''), '[]')::jsonb)
                   AS k (grantee text, proname text) JOIN pg_roles r ON r.rolname = k.grantee),
        wanted AS (
            SELECT to_regrole('messages_' || name)::oid AS grantee, f.oid
              FROM listed CROSS JOIN string_to_table(listed.groups, ' ') AS name
              JOIN function f ON f.proname = ANY (string_to_array(listed.functions, ' '))
             WHERE to_regrole('messages_' || name) IS NOT NULL
            UNION
            SELECT to_regrole('messages_admin')::oid, f.oid FROM function f
             WHERE NOT f.internal AND to_regrole('messages_admin') IS NOT NULL
            UNION
            -- Whoever was granted anything may also ask what every role may ask.
            SELECT k.grantee, f.oid FROM kept k JOIN function f
                ON f.proname = k.proname OR f.proname IN ('schema_version', 'latest_migration', 'compatible_version', 'upkeep_mode')
             WHERE f.proowner <> k.grantee),
        present AS (
            SELECT a.grantee, f.oid FROM function f CROSS JOIN aclexplode(f.proacl) a)
        SELECT format(CASE WHEN p.oid IS NULL THEN 'GRANT EXECUTE ON FUNCTION %s TO %s' ELSE 'REVOKE ALL ON FUNCTION %s FROM %s' END,
                      oid::regprocedure, grantee::regrole)
          FROM wanted w FULL JOIN present p USING (grantee, oid)
         WHERE p.oid IS NULL
            OR (w.oid IS NULL AND grantee::regrole::text IN ('messages_publisher', 'messages_consumer', 'messages_observer',
                    'messages_upkeep', 'messages_admin', 'messages_raw', 'messages_reader', 'messages_pipeline', 'messages_limited'))
         ORDER BY oid::regprocedure::text, grantee::regrole::text
    LOOP
        EXECUTE change;
    END LOOP;
    FOR change IN
        SELECT format('GRANT %s TO %I', privilege, 'messages_' || name)
          FROM (VALUES
            -- messages_limited can do nothing by itself, but it must not be dropped while a database counts on it.
            ('USAGE ON SCHEMA messages', 'publisher consumer observer upkeep admin raw reader pipeline limited'),
            ('SELECT ON messages.archive_overview, messages.message_overview, messages.result_count', 'observer admin'),
            -- Whole tables, bodies too, by ranges of pages.
            ('SELECT ON messages.message, messages.message_archive', 'reader'),
            -- The conventions for plain SQL: sql/README.md
            ('SELECT, INSERT, UPDATE, DELETE ON messages.message', 'raw'),
            ('SELECT, INSERT ON messages.message_archive', 'raw'),
            ('USAGE ON SEQUENCE messages.message_id_seq', 'raw')) AS listed (privilege, groups)
         CROSS JOIN string_to_table(groups, ' ') AS name
         WHERE to_regrole('messages_' || name) IS NOT NULL
    LOOP
        EXECUTE change;
    END LOOP;
    PERFORM messages.open_cron();
END $$;
