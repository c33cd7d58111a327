CREATE OR REPLACE FUNCTION messages.extra_grants() RETURNS TABLE (grantee text, command text, privileges text, things text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH groups AS (
        SELECT to_regrole('messages_' || name)::oid AS oid, name
          FROM unnest('{publisher,consumer,observer,upkeep,raw,reader,pipeline,admin,limited}'::text[]) AS name),
    -- Which privileges on anything but functions are meant: for the group roles what grants.sql lists, for others what an admin granted by hand.
    given (kind, thing, privileges, roles) AS (
        VALUES ('SCHEMA', 'messages', '{USAGE}'::text[], (SELECT array_agg(name) FROM groups)),
               ('TABLE', 'queue_overview', '{SELECT}', '{observer,reader,admin}'), ('TABLE', 'message_overview', '{SELECT}', '{observer,admin}'),
               ('TABLE', 'dispatch_overview', '{SELECT}', '{observer,admin}'), ('TABLE', 'archive_overview', '{SELECT}', '{observer,admin}'),
               ('TABLE', 'message', '{SELECT}', '{reader,raw}'), ('TABLE', 'message', '{INSERT,UPDATE,DELETE}', '{raw}'),
               ('TABLE', 'message_archive', '{SELECT}', '{reader,raw}'), ('TABLE', 'message_archive', '{INSERT}', '{raw}'),
               ('SEQUENCE', 'message_id_seq', '{USAGE}', '{raw}')),
    -- t and so on: how pg_default_acl calls the kind.
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
    -- messages_admin may call all but these.
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
               -- stage_publish() gives it to a group of the login of the stage, or to the login.
               WHEN e.thing ~ '^publish_stage_[0-9]+$' AND e.privilege_type = 'INSERT' THEN g.name IS DISTINCT FROM 'publisher'
                AND g.name IS DISTINCT FROM 'admin' AND NOT EXISTS (
                   SELECT FROM messages.publish_stage s
                    WHERE s.number::text = substr(e.thing, 15) AND to_regrole(quote_ident(s.made_by)) = e.grantee)
               ELSE e.grantee = 0 OR NOT EXISTS (
                   SELECT FROM given v WHERE v.kind = e.kind AND v.thing = e.thing AND e.privilege_type = ANY (v.privileges)
                      AND (g.name IS NULL OR g.name = ANY (v.roles))) END
               -- Default privileges gave it, and nobody by hand.
               OR g.name IS NULL AND EXISTS (
                   SELECT FROM pg_default_acl d CROSS JOIN aclexplode(d.defaclacl) a
                    WHERE d.defaclnamespace IN (0, 'messages'::regnamespace) AND d.defaclobjtype::text = e.code
                      AND a.grantee = e.grantee AND a.grantee <> d.defaclrole AND a.privilege_type = e.privilege_type)))
    -- What the owner did not grant goes with the right of whoever did.
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
COMMENT ON FUNCTION messages.extra_grants() IS
    'What a role outside of the groups may do that no admin can have meant, what a group may do beyond its list, and what default privileges gave: the role, the statement that takes it back, the privileges and the objects.';
