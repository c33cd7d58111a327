-- For views: whoever reads a view needs EXECUTE on the functions in it, but no privilege on the tables.
CREATE OR REPLACE VIEW messages.session_reach AS
SELECT login.everything,
       ARRAY(SELECT g.queue_name FROM messages.queue_grant g
              WHERE g.privilege IN ('observe', 'consume') AND pg_has_role(session_user, g.grantee, 'MEMBER')) AS queue_names,
       login.shows_bodies AND (has_table_privilege(session_user, 'messages.message'::regclass, 'SELECT')
                               OR has_table_privilege(session_user, 'messages.message_archive'::regclass, 'SELECT')
                               OR login.leases AND login.everything) AS bodies,
       ARRAY(SELECT g.queue_name FROM messages.queue_grant g
              WHERE g.privilege = 'consume' AND pg_has_role(session_user, g.grantee, 'MEMBER') AND login.leases AND login.shows_bodies) AS body_queues
  FROM (SELECT coalesce(NOT pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER'), true)
               OR pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS TRUE AS everything,
               -- A page sets messages.bodies to off for whoever may see less than its login.
               current_setting('messages.bodies', true) IS DISTINCT FROM 'off' AS shows_bodies,
               EXISTS (SELECT FROM pg_proc p
                        WHERE p.pronamespace = 'messages'::regnamespace AND p.proname IN ('lease', 'lease_dead', 'consume')
                          AND has_function_privilege(session_user, p.oid, 'EXECUTE')) AS leases) AS login;
COMMENT ON VIEW messages.session_reach IS 'What this login may observe: everything, unless session_is_limited(), or these queues; and whose bodies it may read, from the tables or with a lease, and so the texts of errors too.';
