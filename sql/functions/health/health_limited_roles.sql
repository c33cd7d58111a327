CREATE OR REPLACE FUNCTION messages.health_limited_roles() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH limited AS (
        SELECT r.oid, r.rolname FROM pg_roles r
         WHERE r.rolcanlogin AND pg_has_role(r.oid, to_regrole('messages_limited'), 'MEMBER')
           AND pg_has_role(r.oid, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE),
    found AS (SELECT l.* FROM limited l WHERE messages.reads_all_bodies(l.oid)),
    -- messages_pipeline is a member of messages_reader by design.
    remedy AS (
        SELECT DISTINCT format('REVOKE %s FROM %s', m.roleid::regrole, m.member::regrole) AS command
          FROM found f JOIN pg_auth_members m ON pg_has_role(f.oid, m.member, 'MEMBER')
         WHERE m.roleid IN (to_regrole('messages_reader'), to_regrole('messages_pipeline'), to_regrole('messages_raw'),
                            to_regrole('pg_read_all_data'))
           AND m.member IS DISTINCT FROM to_regrole('messages_pipeline')
        UNION
        SELECT format('REVOKE SELECT ON messages.message, messages.message_archive FROM %I', f.rolname)
          FROM found f JOIN pg_class c ON c.oid IN ('messages.message'::regclass, 'messages.message_archive'::regclass)
         CROSS JOIN aclexplode(c.relacl) a WHERE a.grantee = f.oid AND a.privilege_type = 'SELECT')
    SELECT CASE WHEN EXISTS (SELECT FROM found) THEN 'critical' ELSE 'ok' END,
           format('logins that are limited to their queues: %s%s', (SELECT count(*) FROM limited),
                  (SELECT '; of these read the bodies of all queues: ' || string_agg(quote_ident(f.rolname), ', ' ORDER BY f.rolname) FROM found f)),
           (SELECT coalesce(string_agg(r.command, '; ' ORDER BY r.command), '-- revoke what lets them read messages.message and messages.message_archive')
              FROM remedy r HAVING EXISTS (SELECT FROM found))
$$;
COMMENT ON FUNCTION messages.health_limited_roles() IS
    'A check of health(). Whether a login that is limited to its queues can read the bodies of all of them.';
