CREATE OR REPLACE FUNCTION messages.queue_grants()
RETURNS TABLE (queue_name text, role_name text, privilege text, granted_at timestamptz, granted_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT g.queue_name, r.rolname::text, g.privilege, g.granted_at, g.granted_by
      FROM messages.queue_grant g JOIN pg_roles r ON r.oid = g.grantee
     ORDER BY 1, 2, 3
$$;
COMMENT ON FUNCTION messages.queue_grants() IS 'The privileges that grant_queue granted.';
