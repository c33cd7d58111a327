CREATE OR REPLACE FUNCTION messages.check_stage_login() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF session_user <> TG_ARGV[0] COLLATE "C" THEN
        RAISE EXCEPTION 'stage % belongs to another login', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege',
            HINT = 'Stage with stage_publish() of this login.';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.check_stage_login() IS
    'The trigger of a staging table: raises 42501 for every login but that of its job.';
