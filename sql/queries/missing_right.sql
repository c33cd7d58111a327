-- What this login lacks to do what a group role may: a queue, if the login is limited to its queues; its own role, if it does not
-- inherit the roles that it is a member of; the group role; or, where the group role was not made, the privileges themselves.
SELECT CASE
    WHEN %(privilege)s::text IS NOT NULL AND pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
         AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE
        THEN format('SELECT messages.grant_queue(%%L, %%L, %%L)', %(queue_name)s::text, session_user, %(privilege)s::text)
    WHEN r.oid IS NULL
        THEN format('GRANT USAGE ON SCHEMA messages TO %%I', current_user) || CASE
            WHEN %(relation)s::text IS NOT NULL THEN format('; GRANT SELECT ON messages.%%I TO %%I', %(relation)s::text, current_user)
            WHEN %(function)s::text IS NOT NULL THEN format('; GRANT EXECUTE ON FUNCTION messages.%%I TO %%I', %(function)s::text, current_user)
            ELSE '' END
    WHEN NOT pg_has_role(r.oid, 'MEMBER') THEN format('GRANT %%I TO %%I', r.rolname, current_user)
    WHEN current_setting('server_version_num')::integer < 160000 THEN format('ALTER ROLE %%I INHERIT', current_user)
    ELSE format('GRANT %%I TO %%I WITH INHERIT TRUE', r.rolname, current_user) END
  FROM (VALUES ('messages_' || %(group)s::text)) AS wanted (name) LEFT JOIN pg_catalog.pg_roles r ON r.rolname = wanted.name
