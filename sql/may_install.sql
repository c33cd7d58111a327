-- Refuses a login that lacks a right, or has more rights than the roles that may write to the schema, and a database that cannot
-- hold every text; names the statement that helps. ASCII only, because such a database could not read more.
DO $$
DECLARE
    owner  record;
    writer record;
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'database % has the encoding %, and messages need UTF8', quote_ident(current_database()), getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
            HINT = format('Install in another one: CREATE DATABASE %I TEMPLATE template0 ENCODING ''UTF8'' LOCALE ''C''', current_database() || '_utf8');
    END IF;
    SELECT r.rolname, r.rolsuper, pg_has_role(current_user, r.oid, 'USAGE') AS uses, pg_has_role(current_user, r.oid, 'MEMBER') AS may_use INTO owner
      FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'messages';
    IF NOT FOUND AND NOT has_database_privilege(current_database(), 'CREATE') THEN
        RAISE EXCEPTION 'role % may not create a schema in database %', quote_ident(current_user), quote_ident(current_database())
            USING ERRCODE = 'insufficient_privilege', HINT = format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user);
    ELSIF NOT owner.uses THEN
        RAISE EXCEPTION 'role % is no member of %, which owns schema messages', quote_ident(current_user), quote_ident(owner.rolname)
            USING ERRCODE = 'insufficient_privilege', HINT = CASE
                WHEN owner.may_use THEN format('Install after SET ROLE %1$I, or with PGOPTIONS="-c role=%1$s"', owner.rolname)
                WHEN owner.rolsuper THEN format('Install as %I', owner.rolname)
                ELSE format('GRANT %I TO %I', owner.rolname, current_user) END;
    END IF;
    -- Triggers, defaults, checks and functions run as the login that installs, which may not have more rights than each of their writers.
    WITH RECURSIVE relation AS (
        SELECT c.oid, c.relowner, c.relacl FROM pg_class c WHERE c.relnamespace = to_regnamespace('messages')
        UNION
        SELECT c.oid, c.relowner, c.relacl FROM relation r JOIN pg_inherits i ON i.inhparent = r.oid JOIN pg_class c ON c.oid = i.inhrelid),
    author AS (
        SELECT n.nspowner AS oid FROM pg_namespace n WHERE n.nspname = 'messages'
        UNION
        SELECT a.grantee FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a WHERE n.nspname = 'messages' AND a.privilege_type = 'CREATE'
        UNION
        SELECT r.relowner FROM relation r
        UNION
        SELECT a.grantee FROM relation r CROSS JOIN aclexplode(r.relacl) a WHERE a.privilege_type = 'TRIGGER'
        UNION
        SELECT p.proowner FROM pg_proc p WHERE p.pronamespace = to_regnamespace('messages')),
    login AS (
        SELECT r.oid, r.rolname, r.rolcanlogin,
               CASE WHEN r.rolsuper THEN 2 WHEN r.rolcreaterole THEN 1 ELSE 0 END AS power FROM pg_roles r)
    SELECT l.rolname, me.power, n.nspowner::regrole AS owner, pg_has_role(l.oid, n.nspowner, 'MEMBER') AS owns INTO writer
      FROM pg_namespace n CROSS JOIN login me JOIN login l ON l.power < me.power AND l.rolcanlogin
     WHERE n.nspname = 'messages' AND me.rolname = session_user
       AND EXISTS (SELECT FROM author a WHERE a.oid = 0 OR pg_has_role(l.oid, a.oid, 'MEMBER'))
     ORDER BY owns DESC, l.rolname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% may write code into schema messages, which would run as the %', quote_ident(writer.rolname),
            CASE writer.power WHEN 2 THEN 'superuser ' ELSE 'role with CREATEROLE ' END || quote_ident(session_user)
            USING ERRCODE = 'insufficient_privilege',
            HINT = CASE WHEN writer.owns THEN format('Install as %1$I: PGUSER=%1$s, or user=%1$s in the connection string', writer.rolname)
                        ELSE format('Install as a login that is not a superuser, after GRANT %s TO that login', writer.owner) END;
    END IF;
END $$;
