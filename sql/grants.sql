-- Who may call what, and what nobody may call. The comment of a function ends with the roles that may call it, [for: consumer, observer],
-- or with [internal]. "every role" means each group role but messages_limited, and each role with a grant by hand; messages_admin may
-- call all but the internal functions, which may change with any version. This runs at every installation, so it covers what a new version
-- adds.
DO $$
DECLARE
    ending CONSTANT text   := ' [[](?:for: )?([a-z, ]+)[]]$';
    groups CONSTANT text[] := ARRAY['publisher', 'consumer', 'observer', 'maintenance', 'raw', 'reader', 'pipeline', 'admin', 'limited'];
    change text;
BEGIN
    FOR change IN
        SELECT CASE WHEN f.roles IS NULL THEN format('the comment of function %s does not end with who may call it', f.oid::regprocedure)
                    ELSE format('function %s is for %s, and there is no such role', f.oid::regprocedure, array_to_string(f.roles, ', ')) END
          FROM (SELECT p.oid, p.proacl, string_to_array(substring(obj_description(p.oid, 'pg_proc') FROM ending), ', ') AS roles
                  FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace) f
         -- A new function has no privileges yet. A function of an earlier version has some.
         WHERE f.proacl IS NULL AND (f.roles <@ (groups || '{every role,internal}')) IS NOT TRUE
         ORDER BY 1 LIMIT 1
    LOOP
        RAISE EXCEPTION '%', change USING ERRCODE = 'invalid_grant_operation',
            HINT = 'End the comment with [for: ROLE, ROLE] or [internal]. Put your own functions in another schema.';
    END LOOP;
    -- Revoke everything from PUBLIC, and what ALTER DEFAULT PRIVILEGES or anybody else gave beyond the grants that are allowed by hand.
    FOR change IN SELECT e.command FROM messages.extra_grants() e LOOP
        EXECUTE change;
    END LOOP;
    FOR change IN
        WITH function AS (
            SELECT p.oid, p.proowner, p.proacl,
                   string_to_array(substring(obj_description(p.oid, 'pg_proc') FROM ending), ', ') AS roles
              FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace),
        granted AS (
            SELECT f.oid, a.grantee,
                   a.grantee = ANY (SELECT to_regrole('messages_' || name) FROM unnest(groups) AS name) AS to_group
              FROM function f CROSS JOIN aclexplode(f.proacl) a WHERE a.grantee NOT IN (0, f.proowner)),
        wanted AS (
            SELECT to_regrole('messages_' || g.role)::oid AS grantee, f.oid
              FROM function f CROSS JOIN unnest(f.roles) AS may (role)
              JOIN unnest(groups) AS g (role) ON g.role = may.role OR g.role <> 'limited' AND may.role = 'every role'
                                              OR g.role = 'admin' AND may.role <> 'internal'
             WHERE to_regrole('messages_' || g.role) IS NOT NULL
            UNION
            SELECT g.grantee, f.oid FROM granted g JOIN function f ON 'every role' = ANY (f.roles)
             WHERE NOT g.to_group AND f.proowner <> g.grantee)
        SELECT format(CASE WHEN g.oid IS NULL THEN 'GRANT EXECUTE ON FUNCTION %s TO %s' ELSE 'REVOKE ALL ON FUNCTION %s FROM %s' END,
                      oid::regprocedure, grantee::regrole)
          FROM wanted w FULL JOIN granted g USING (grantee, oid)
         WHERE g.oid IS NULL OR (w.oid IS NULL AND g.to_group)
         ORDER BY oid::regprocedure::text, grantee::regrole::text
    LOOP
        EXECUTE change;
    END LOOP;
    FOR change IN
        SELECT format('GRANT %s TO %I', privilege, 'messages_' || name)
          FROM (VALUES
            -- messages_limited can do nothing by itself, but it must not be dropped while a database relies on it.
            ('USAGE ON SCHEMA messages', groups),
            ('SELECT ON messages.queue_overview', '{observer,reader,admin}'),
            ('SELECT ON messages.message_overview, messages.dispatch_overview', '{observer,admin}'),
            ('SELECT ON messages.archive_overview', '{observer,admin}'),
            -- Whole tables, bodies too, by ranges of pages.
            ('SELECT ON messages.message, messages.message_archive', '{reader}'),
            -- The conventions for plain SQL: sql/README.md
            ('SELECT, INSERT, UPDATE, DELETE ON messages.message', '{raw}'),
            ('SELECT, INSERT ON messages.message_archive', '{raw}'),
            ('USAGE ON SEQUENCE messages.message_id_seq', '{raw}')) AS tables (privilege, roles)
         CROSS JOIN unnest(roles) AS name
         WHERE to_regrole('messages_' || name) IS NOT NULL
    LOOP
        EXECUTE change;
    END LOOP;
    PERFORM messages.show_cron_jobs_to_owner();
END $$;
