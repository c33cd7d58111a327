-- For views: whoever reads a view needs EXECUTE on the functions in it, but no privilege on the tables.
CREATE OR REPLACE VIEW messages.session_reach AS
SELECT coalesce(NOT pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER'), true)
       OR pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS TRUE AS everything,
       ARRAY(SELECT g.queue_name FROM messages.queue_grant g
              WHERE g.privilege IN ('observe', 'consume') AND pg_has_role(session_user, g.grantee, 'MEMBER')) AS queue_names;
COMMENT ON VIEW messages.session_reach IS 'What this login may observe: everything, unless session_is_limited(), or these queues.';
