CREATE OR REPLACE FUNCTION messages.reads_all_bodies(role oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- MEMBER, because a role that does not inherit could SET ROLE to the group.
    SELECT has_table_privilege(role, 'messages.message', 'SELECT') OR has_table_privilege(role, 'messages.message_archive', 'SELECT')
        OR coalesce(pg_has_role(role, to_regrole('messages_reader'), 'MEMBER'), false)
        OR coalesce(pg_has_role(role, to_regrole('messages_raw'), 'MEMBER'), false)
$$;
COMMENT ON FUNCTION messages.reads_all_bodies(oid) IS
    'True if a role may read the tables of the messages, whatever queues were granted to it.';
