CREATE OR REPLACE FUNCTION messages.granted_queues(privilege text DEFAULT 'observe') RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT g.queue_name FROM messages.queue_grant g
     WHERE g.privilege IN (granted_queues.privilege, CASE granted_queues.privilege WHEN 'observe' THEN 'consume' END)
       AND pg_has_role(session_user, g.grantee, 'MEMBER')
     ORDER BY 1
$$;
COMMENT ON FUNCTION messages.granted_queues(text) IS
    'The queues that were granted to this login for publish, consume or observe. It reaches only these if session_is_limited().';
