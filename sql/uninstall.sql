-- Removes the pg_cron jobs of this database and the schema with everything in it. Messages are lost. The roles go with the last
-- database of the cluster that uses them. It calls no function of the schema: a superuser would run what its owners wrote.
\ir may_uninstall.sql
\ir drop_marks.sql
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL row_security = on;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') AND has_schema_privilege('cron', 'USAGE') THEN
        PERFORM cron.unschedule(jobid) FROM cron.job
          WHERE jobname LIKE 'messages:maintenance%' AND database = current_database()
            AND (username = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user));
    END IF;
END $$;
DO $$
BEGIN
    -- Remove what pgmq.sql made, but not the extension of that name.
    IF EXISTS (SELECT FROM pg_namespace n JOIN pg_namespace m ON m.nspowner = n.nspowner
                WHERE n.nspname = 'pgmq' AND m.nspname = 'messages' AND obj_description(n.oid, 'pg_namespace') LIKE 'PGMQ''s names for %') THEN
        DROP SCHEMA pgmq CASCADE;
    END IF;
END $$;
DROP SCHEMA messages CASCADE;
DO $$
DECLARE
    name text;
    why  text;
    used boolean := false;
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
        -- These are the policies that show_cron_jobs_to_owner() made for messages_owner.
        IF EXISTS (SELECT FROM pg_policy WHERE polname = 'messages_owner' AND polrelid = to_regclass('cron.job')) THEN
            DROP POLICY messages_owner ON cron.job_run_details;
            DROP POLICY messages_owner ON cron.job;
            REVOKE USAGE ON SCHEMA cron FROM messages_owner;
        END IF;
        IF has_schema_privilege('cron', 'USAGE') THEN
            used := EXISTS (SELECT FROM cron.job WHERE username = 'messages_cron');
        END IF;
    END IF;
    -- messages_owner last: the memberships that it granted go with the groups.
    FOREACH name IN ARRAY ARRAY['messages_publisher', 'messages_consumer', 'messages_observer', 'messages_maintenance', 'messages_admin',
                                'messages_raw', 'messages_reader', 'messages_pipeline', 'messages_limited', 'messages_cron', 'messages_owner']
    LOOP
        CONTINUE WHEN to_regrole(name) IS NULL;
        -- A job has its login as a text, on which nothing depends.
        IF name = 'messages_cron' AND (used OR to_regrole('messages_maintenance') IS NOT NULL) THEN
            RAISE NOTICE 'role messages_cron stays: it runs maintenance for another database';
            CONTINUE;
        END IF;
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
