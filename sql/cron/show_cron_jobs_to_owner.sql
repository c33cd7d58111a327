CREATE OR REPLACE FUNCTION messages.show_cron_jobs_to_owner() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
DECLARE
    cron_owner oid := (SELECT e.extowner FROM pg_extension e WHERE e.extname = 'pg_cron');
BEGIN
    IF to_regrole('messages_owner') IS NULL OR pg_has_role(current_user, cron_owner, 'USAGE') IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- pg_cron shows each role its own jobs only, but the role that made a job is not the one that owns our functions.
    GRANT USAGE ON SCHEMA cron TO messages_owner;
    IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = to_regclass('cron.job') AND polname = 'messages_owner') THEN
        EXECUTE $policy$
            CREATE POLICY messages_owner ON cron.job FOR SELECT TO messages_owner
                USING (command ~ '[[:<:]]messages[.]')
        $policy$;
        EXECUTE $policy$
            CREATE POLICY messages_owner ON cron.job_run_details TO messages_owner
                USING (database = current_database() AND command ~ '[[:<:]]messages[.]')
        $policy$;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.show_cron_jobs_to_owner() IS
    'Lets messages_owner see the jobs of pg_cron that call the queue, and their history, if the caller owns the tables of pg_cron.';
