CREATE OR REPLACE FUNCTION messages.check_run_owner(run_id text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM messages.pipeline_run r WHERE r.run_id = check_run_owner.run_id AND r.started_by <> session_user)
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        RAISE EXCEPTION 'run % was started by another role', quote_literal(check_run_owner.run_id)
            USING ERRCODE = 'PQ004', HINT = 'Go on with it as that role or an admin, or give the run another name.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_run_owner(text) IS
    'Raises PQ004 if another login started the run, except for admins.';
