-- Access: which login reaches which queue.
--
-- A group role has functions: the comment of each function ends with the roles that may call it, and sql/grants.sql grants it to them.
-- grant_queue limits a login to queues: as a member of messages_limited it reaches only those that were granted to it. Functions run
-- with the rights of messages_owner, so they call check_access, or read the view session_reach.
--
-- keep_private revokes what ALTER DEFAULT PRIVILEGES granted to others. extra_grants lists such privileges, each with its REVOKE.
--
-- Tables: queue_grant.

CREATE OR REPLACE FUNCTION messages.grant_queue(queue_name text, role_name text, privilege text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    grantee regrole := messages.find_role(grant_queue.role_name);
    groups  text[]  := CASE grant_queue.privilege
        WHEN 'publish' THEN ARRAY['messages_limited', 'messages_publisher']
        WHEN 'consume' THEN ARRAY['messages_limited', 'messages_consumer']
        WHEN 'observe' THEN ARRAY['messages_limited', 'messages_observer'] END;
    added   boolean;
    name    text;
BEGIN
    PERFORM messages.check_choice('privilege', grant_queue.privilege, '{publish,consume,observe}', required => true);
    IF to_regrole('messages_limited') IS NULL THEN
        RAISE EXCEPTION 'this cluster has no role messages_limited' USING ERRCODE = 'undefined_object',
            HINT = 'Install again as a superuser or a role with CREATEROLE: the installation creates the group roles.';
    ELSIF starts_with(grant_queue.role_name, 'messages_') OR pg_has_role(grantee, to_regrole('messages_admin'), 'USAGE') THEN
        RAISE EXCEPTION 'role % cannot be limited to queues', quote_literal(grant_queue.role_name) USING ERRCODE = 'PQ004',
            HINT = 'Give a role that is not a superuser, not a member of messages_admin, and not one of the group roles.';
    ELSIF messages.reads_all_bodies(grantee) THEN
        RAISE EXCEPTION 'role % reads the messages of all queues', quote_literal(grant_queue.role_name) USING ERRCODE = 'PQ004',
            HINT = 'Revoke messages_reader, messages_pipeline, messages_raw and SELECT on messages.message from it first, or give another role: while it has these, a limit to some queues means nothing.';
    END IF;
    -- One grant at a time: PostgreSQL fails if two sessions make a role a member of a group at once. Drops and revokes continue.
    LOCK TABLE messages.queue_grant IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM FROM messages.queue q WHERE q.queue_name = grant_queue.queue_name COLLATE "default" FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(grant_queue.queue_name);
    END IF;
    -- A new role may get the OID of a dropped role.
    DELETE FROM messages.queue_grant g WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = g.grantee);
    INSERT INTO messages.queue_grant (queue_name, grantee, privilege)
    VALUES (grant_queue.queue_name, grantee, grant_queue.privilege) ON CONFLICT DO NOTHING;
    added := FOUND;
    FOREACH name IN ARRAY groups LOOP
        IF NOT pg_has_role(grantee, name, 'MEMBER') THEN
            EXECUTE format('GRANT %I TO %I', name, grant_queue.role_name);
        END IF;
    END LOOP;
    PERFORM messages.record_audit('grant_queue', grant_queue.queue_name, jsonb_build_object(
        'role_name', grant_queue.role_name, 'privilege', grant_queue.privilege), added::integer);
    RETURN added;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', grant_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.grant_queue IS
    'Lets a role and its members publish to, consume from or observe one queue. From then on it reaches only the queues granted to it, as a member of messages_limited. True if the grant is new. PQ001: unknown queue; PQ004: bad role or privilege; 42501: the owner of the schema may not grant the group roles; PQ016: another transaction is changing it, or grants another queue, for more than three seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.revoke_queue(queue_name text, role_name text, privilege text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    role    regrole := messages.find_role(revoke_queue.role_name);
    revoked integer;
BEGIN
    -- The role stays in messages_limited: without it the role would reach every queue, and other databases may rely on it.
    DELETE FROM messages.queue_grant g
     WHERE g.queue_name = revoke_queue.queue_name COLLATE "default" AND g.grantee = role
       AND (revoke_queue.privilege IS NULL OR g.privilege = revoke_queue.privilege);
    GET DIAGNOSTICS revoked = ROW_COUNT;
    PERFORM messages.record_audit('revoke_queue', revoke_queue.queue_name, jsonb_build_object(
        'role_name', revoke_queue.role_name, 'privilege', revoke_queue.privilege), revoked);
    RETURN revoked;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', revoke_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.revoke_queue IS
    'Revokes what grant_queue granted (privilege NULL: everything on the queue) and returns how many grants there were. The role stays limited. PQ004: no such role; PQ016: another transaction is changing it for more than three seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.queue_grants()
RETURNS TABLE (queue_name text, role_name text, privilege text, granted_at timestamptz, granted_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT g.queue_name, r.rolname::text, g.privilege, g.granted_at, g.granted_by
      FROM messages.queue_grant g JOIN pg_roles r ON r.oid = g.grantee
     ORDER BY 1, 2, 3
$$;
COMMENT ON FUNCTION messages.queue_grants IS 'The privileges that grant_queue granted.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.granted_queues(privilege text DEFAULT 'observe') RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT g.queue_name FROM messages.queue_grant g
     WHERE g.privilege IN (granted_queues.privilege, CASE granted_queues.privilege WHEN 'observe' THEN 'consume' END)
       AND pg_has_role(session_user, g.grantee, 'MEMBER')
     ORDER BY 1
$$;
COMMENT ON FUNCTION messages.granted_queues IS
    'The queues that were granted to this login for publish, consume or observe. It reaches only these if session_is_limited().'
    ' [for: publisher, consumer, observer, maintenance]';

CREATE OR REPLACE FUNCTION messages.session_is_limited() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The login counts, not SET ROLE or SECURITY DEFINER. The test is MEMBER, because a role that does not inherit could
    -- SET ROLE to the group and be unlimited. A superuser is a member of every role, so of messages_admin too.
    RETURN coalesce(pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER'), false)
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE;
END $$;
COMMENT ON FUNCTION messages.session_is_limited IS
    'True if this login reaches only the queues granted to it: a member of messages_limited and not of messages_admin.'
    ' [for: publisher, consumer, observer, maintenance]';

CREATE OR REPLACE FUNCTION messages.check_access(queue_name text, privilege text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT messages.session_is_limited() THEN
        RETURN;
    ELSIF check_access.queue_name IS NULL THEN
        RAISE EXCEPTION 'role % is limited to its queues', quote_literal(session_user)
            USING ERRCODE = '42501', HINT = 'Name one of them: SELECT * FROM messages.granted_queues()';
    ELSIF NOT EXISTS (
        SELECT FROM messages.queue_grant g
         WHERE g.queue_name = check_access.queue_name COLLATE "default"
           AND g.privilege IN (check_access.privilege, CASE check_access.privilege WHEN 'observe' THEN 'consume' END)
           AND pg_has_role(session_user, g.grantee, 'MEMBER')) THEN
        RAISE EXCEPTION 'role % has no privilege to % on queue %', quote_literal(session_user), check_access.privilege,
                        quote_literal(left(check_access.queue_name, 100))
            USING ERRCODE = '42501',
                  HINT = format('An admin can grant it: SELECT messages.grant_queue(%L, %L, %L)',
                                left(check_access.queue_name, 100), session_user, check_access.privilege);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_access IS
    'Raises 42501 if this login is limited and the queue was not granted to it.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.find_role(role_name text) RETURNS regrole
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found regrole;
BEGIN
    SELECT r.oid INTO found FROM pg_roles r WHERE r.rolname = role_name;
    IF found IS NULL THEN
        RAISE EXCEPTION 'role % does not exist', coalesce(quote_literal(left(role_name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Create it: CREATE ROLE %I LOGIN', coalesce(left(role_name, 63), 'name'));
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION messages.find_role IS 'The role with this name. PQ004: there is none.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.reads_all_bodies(role oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- The test is MEMBER, because a role that does not inherit could SET ROLE to the group.
    SELECT has_table_privilege(role, 'messages.message', 'SELECT') OR has_table_privilege(role, 'messages.message_archive', 'SELECT')
        OR coalesce(pg_has_role(role, to_regrole('messages_reader'), 'MEMBER'), false)
        OR coalesce(pg_has_role(role, to_regrole('messages_raw'), 'MEMBER'), false)
$$;
COMMENT ON FUNCTION messages.reads_all_bodies IS
    'True if a role may read the tables of the messages, whatever queues were granted to it.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.keep_private(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
          FROM pg_class c CROSS JOIN aclexplode(c.relacl) a WHERE c.oid = keep_private.relation AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', keep_private.relation, grantee);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.keep_private IS
    'Revokes the privileges that default privileges gave to others when this table or sequence was made.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.extra_grants() RETURNS TABLE (grantee text, command text, privileges text, things text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH groups AS (
        SELECT to_regrole('messages_' || name)::oid AS oid, name
          FROM unnest('{publisher,consumer,observer,maintenance,raw,reader,pipeline,admin,limited}'::text[]) AS name),
    -- The intended privileges on everything but functions: for group roles the list of grants.sql, for other roles the grants by hand.
    given (kind, thing, privileges, roles) AS (
        VALUES ('SCHEMA', 'messages', '{USAGE}'::text[], (SELECT array_agg(name) FROM groups)),
               ('TABLE', 'queue_overview', '{SELECT}', '{observer,reader,admin}'), ('TABLE', 'message_overview', '{SELECT}', '{observer,admin}'),
               ('TABLE', 'dispatch_overview', '{SELECT}', '{observer,admin}'), ('TABLE', 'archive_overview', '{SELECT}', '{observer,admin}'),
               ('TABLE', 'message', '{SELECT}', '{reader,raw}'), ('TABLE', 'message', '{INSERT,UPDATE,DELETE}', '{raw}'),
               ('TABLE', 'message_archive', '{SELECT}', '{reader,raw}'), ('TABLE', 'message_archive', '{INSERT}', '{raw}'),
               ('SEQUENCE', 'message_id_seq', '{USAGE}', '{raw}')),
    -- code is the letter of the kind in pg_default_acl.
    entry AS (
        SELECT 'SCHEMA' AS kind, 'n' AS code, n.nspname AS thing, 'messages' AS place, n.nspowner AS owner, NULL::name AS attribute, a.*
          FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a WHERE n.nspname = 'messages'
        UNION ALL
        SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, CASE c.relkind WHEN 'S' THEN 'S' ELSE 'r' END, c.relname,
               format('messages.%I', c.relname), c.relowner, NULL, a.*
          FROM pg_class c CROSS JOIN aclexplode(c.relacl) a WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        UNION ALL
        SELECT 'TABLE', '', c.relname, format('messages.%I', c.relname), c.relowner, t.attname, a.*
          FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid AND NOT t.attisdropped CROSS JOIN aclexplode(t.attacl) a
         WHERE c.relnamespace = 'messages'::regnamespace
        UNION ALL
        SELECT 'FUNCTION', 'f', p.proname, p.oid::regprocedure::text, p.proowner, NULL, a.*
          FROM pg_proc p CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE p.pronamespace = 'messages'::regnamespace
        UNION ALL
        SELECT 'TYPE', 'T', t.typname, t.oid::regtype::text, t.typowner, NULL, a.*
          FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c' CROSS JOIN aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a
         WHERE t.typnamespace = 'messages'::regnamespace),
    -- messages_admin may call every function but these.
    internal AS (
        SELECT p.proname FROM groups admin CROSS JOIN pg_proc p
         WHERE admin.name = 'admin' AND p.pronamespace = 'messages'::regnamespace AND has_schema_privilege(admin.oid, p.pronamespace, 'USAGE')
           AND NOT EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = admin.oid)),
    extra AS (
        SELECT e.*
          FROM entry e LEFT JOIN groups g ON g.oid = e.grantee
         WHERE e.grantee <> e.owner
           AND (e.is_grantable OR CASE
               WHEN e.kind = 'FUNCTION' THEN e.grantee = 0 OR e.thing IN (SELECT i.proname FROM internal i)
               -- stage_publish() grants it to a group of the login of the stage, or to the login.
               WHEN e.thing ~ '^publish_stage_[0-9]+$' AND e.privilege_type = 'INSERT' THEN g.name IS DISTINCT FROM 'publisher'
                AND g.name IS DISTINCT FROM 'admin' AND NOT EXISTS (
                   SELECT FROM messages.publish_stage s
                    WHERE s.number::text = substr(e.thing, 15) AND to_regrole(quote_ident(s.made_by)) = e.grantee)
               ELSE e.grantee = 0 OR NOT EXISTS (
                   SELECT FROM given v WHERE v.kind = e.kind AND v.thing = e.thing AND e.privilege_type = ANY (v.privileges)
                      AND (g.name IS NULL OR g.name = ANY (v.roles))) END
               -- Default privileges granted it; nobody granted it by hand.
               OR g.name IS NULL AND EXISTS (
                   SELECT FROM pg_default_acl d CROSS JOIN aclexplode(d.defaclacl) a
                    WHERE d.defaclnamespace IN (0, 'messages'::regnamespace) AND d.defaclobjtype::text = e.code
                      AND a.grantee = e.grantee AND a.grantee <> d.defaclrole AND a.privilege_type = e.privilege_type)))
    -- A privilege that the owner did not grant goes with the grant option of the role that granted it.
    SELECT holder, CASE WHEN o.onwards THEN 'REVOKE GRANT OPTION FOR ' ELSE 'REVOKE ' END
           || format('%s ON %s %s FROM %s CASCADE', o.privileges, e.kind, string_agg(DISTINCT e.place, ', ' ORDER BY e.place), holder),
           o.privileges, array_agg(DISTINCT e.place ORDER BY e.place)
      FROM (SELECT x.kind, x.place, x.grantor <> x.owner AS onwards, CASE WHEN x.grantor <> x.owner THEN x.grantor ELSE x.grantee END AS holder_oid,
                   string_agg(DISTINCT x.privilege_type || coalesce('(' || quote_ident(x.attribute) || ')', ''), ', ') AS privileges
              FROM extra x GROUP BY 1, 2, 3, 4) o
     CROSS JOIN LATERAL (SELECT CASE o.holder_oid WHEN 0 THEN 'PUBLIC' ELSE o.holder_oid::regrole::text END AS holder, o.kind, o.place) e
     GROUP BY holder, o.onwards, o.privileges, e.kind
     ORDER BY 1, 2
$$;
COMMENT ON FUNCTION messages.extra_grants IS
    'Privileges that no admin can have intended: of a role outside of the groups, of a group beyond its list, and from default privileges. Returns the role, the statement that revokes them, the privileges and the objects.'
    ' [internal]';
