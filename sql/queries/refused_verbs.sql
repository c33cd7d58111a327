-- The verbs that the page offers, and what this login lacks for them, as PostgreSQL and check_access() would check.
WITH verb (name, needs, privilege) AS (
    VALUES ('publish_test', 'messages_publisher', 'publish'), ('requeue_dead', 'messages_consumer', 'consume'),
           ('dismiss_dead', 'messages_consumer', 'consume'), ('release_messages', 'messages_consumer', 'consume'), ('cancel', 'messages_consumer', 'consume'),
           ('pause_queue', 'messages_admin', NULL), ('resume_queue', 'messages_admin', NULL),
           ('purge_queue', 'messages_admin', NULL), ('alter_queue', 'messages_admin', NULL))
SELECT v.name AS verb,
       CASE WHEN p.callable THEN format('SELECT messages.grant_queue(%%L, %%L, %%L)', %(queue_name)s::text, session_user, v.privilege)
            WHEN pg_has_role(session_user, to_regrole(v.needs), 'MEMBER') IS NOT TRUE THEN format('GRANT %%I TO %%I', v.needs, session_user)
            WHEN current_setting('server_version_num')::integer < 160000 THEN format('ALTER ROLE %%I INHERIT', session_user)
            ELSE format('GRANT %%I TO %%I WITH INHERIT TRUE', v.needs, session_user) END AS fix
  FROM verb v
 CROSS JOIN LATERAL (
    SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) AS callable
      FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = 'messages'::regnamespace AND p.proname IN (v.name, 'act_for')) p
 WHERE NOT p.callable
    OR (v.privilege IS NOT NULL AND messages.session_is_limited()
        AND %(queue_name)s::text NOT IN (SELECT messages.granted_queues(v.privilege)))
