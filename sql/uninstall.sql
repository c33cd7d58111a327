-- Removes the pg_cron jobs and the schema with everything in it. Messages are lost. The group roles go with the last
-- database of the cluster that uses them.
\ir drop_marks.sql
BEGIN;
SELECT messages.uninstall_cron();
DROP SCHEMA messages CASCADE;
DO $$
DECLARE
    name text;
    why  text;
BEGIN
    -- What show_cron_jobs_to_owner() gave to messages_owner.
    IF EXISTS (SELECT FROM pg_policy WHERE polname = 'messages_owner' AND polrelid = (
                   SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('cron') AND relname = 'job')) THEN
        DROP POLICY messages_owner ON cron.job_run_details;
        DROP POLICY messages_owner ON cron.job;
        REVOKE USAGE ON SCHEMA cron FROM messages_owner;
    END IF;
    -- messages_owner last: the memberships that it granted go with the groups.
    FOREACH name IN ARRAY ARRAY['messages_cron', 'messages_publisher', 'messages_consumer', 'messages_observer', 'messages_upkeep',
                                'messages_admin', 'messages_raw', 'messages_reader', 'messages_pipeline', 'messages_limited', 'messages_owner']
    LOOP
        CONTINUE WHEN to_regrole(name) IS NULL;
        BEGIN
            EXECUTE format('DROP ROLE %I', name);
        EXCEPTION
            WHEN dependent_objects_still_exist THEN
                GET STACKED DIAGNOSTICS why = PG_EXCEPTION_DETAIL;
                RAISE NOTICE 'role % stays: %', name, split_part(why, E'\n', 1);
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % stays: % may not drop it', name, current_user;
        END;
    END LOOP;
END $$;
COMMIT;
