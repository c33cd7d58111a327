CREATE OR REPLACE FUNCTION messages.session_is_limited() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The login decides, whatever SET ROLE and SECURITY DEFINER say. MEMBER, because a role that does not inherit could
    -- SET ROLE to the group and be unlimited. A superuser is a member of every role, so of messages_admin too.
    RETURN coalesce(pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER'), false)
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE;
END $$;
COMMENT ON FUNCTION messages.session_is_limited() IS
    'True if this login reaches only the queues granted to it: a member of messages_limited and not of messages_admin.';
