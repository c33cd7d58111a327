-- Refuses whoever lacks a right, or a database that cannot hold every text, and names the statement that helps. ASCII only, as such a
-- database could not read more.
DO $$
DECLARE
    owner record;
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
END $$;
