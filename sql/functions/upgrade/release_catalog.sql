CREATE OR REPLACE FUNCTION messages.release_catalog()
RETURNS TABLE (kind text, name text, definition text, mend text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC'
AS $$
    -- Leave out what comes and goes by itself: partitions of the archive, staging tables, marks. The two tables behind the
    -- doors are partitions as well.
    WITH relation AS (
        SELECT c.oid, c.relname, c.relkind, c.relowner, c.reloptions, c.relacl, format('messages.%I', c.relname) AS place,
               (SELECT format('%s ATTACH PARTITION messages.%I %s', h.inhparent::regclass, c.relname, pg_get_expr(c.relpartbound, c.oid))
                  FROM pg_inherits h WHERE h.inhrelid = c.oid AND c.relispartition) AS attached
          FROM pg_class c
         WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S', 'c')
           AND (NOT c.relispartition OR c.relname IN ('message_rows', 'archive_rows'))
           AND c.relname !~ '^(publish_stage|mark)_[0-9]+$'),
    function AS (
        SELECT p.*, p.oid::regprocedure::text AS place FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace)
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'table' END, relname::text,
           CASE relkind WHEN 'v' THEN md5(concat_ws(' ', pg_get_viewdef(oid), reloptions::text))
                WHEN 'S' THEN (SELECT format('%s from %s to %s by %s', s.seqtypid::regtype, s.seqmin, s.seqmax, s.seqincrement)
                                 FROM pg_sequence s WHERE s.seqrelid = oid)
                ELSE coalesce(attached, '') END, 'ALTER TABLE ' || attached
      FROM relation
    UNION ALL
    SELECT 'column', format('%s.%I', r.relname, a.attname),
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                     CASE WHEN a.attidentity <> '' THEN 'IDENTITY' WHEN a.attgenerated <> '' THEN 'GENERATED' ELSE 'DEFAULT' END
                     || ' ' || pg_get_expr(d.adbin, d.adrelid)),
           CASE WHEN r.relkind <> 'c' AND a.attidentity = '' AND a.attgenerated = '' THEN
               format('ALTER TABLE %s ALTER %I %s NOT NULL, ALTER %I %s', r.place, a.attname, CASE WHEN a.attnotnull THEN 'SET' ELSE 'DROP' END,
                      a.attname, coalesce('SET DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'DROP DEFAULT')) END
      FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE r.relkind IN ('r', 'p', 'c')
    UNION ALL
    SELECT 'options', r.relname, array_to_string(o.options, ', '),
           concat(format('ALTER TABLE %s RESET (%s)', r.place, array_to_string(ARRAY(SELECT split_part(name, '=', 1) FROM unnest(o.options) name), ', ')),
                  format('; ALTER TABLE %s SET (%s)', r.place, array_to_string(o.options, ', ')))
      FROM relation r
     CROSS JOIN LATERAL (SELECT ARRAY(SELECT option FROM unnest(r.reloptions) option ORDER BY option) AS options) o
     WHERE r.relkind = 'r' AND o.options <> '{}'
    UNION ALL
    SELECT 'constraint', format('%s.%s', r.relname, k.conname),
           pg_get_constraintdef(k.oid) || CASE WHEN EXISTS (
               SELECT FROM pg_trigger t WHERE t.tgconstraint = k.oid AND t.tgenabled <> 'O') THEN ' (disabled)' ELSE '' END,
           concat(format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', r.place, k.conname),
                  format('; ALTER TABLE %s ADD CONSTRAINT %I %s', r.place, k.conname, pg_get_constraintdef(k.oid)))
      FROM relation r JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('p', 'u', 'c', 'f', 'x') AND k.conislocal
    UNION ALL
    SELECT 'index', x.relname, pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid THEN '' ELSE ' (invalid)' END,
           -- Leave out ONLY, with which PostgreSQL would make the index in no partition.
           concat(format('DROP INDEX IF EXISTS messages.%I', x.relname), '; ', replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '))
      FROM relation r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class x ON x.oid = i.indexrelid AND NOT x.relispartition
     WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT 'trigger', format('%s.%s', r.relname, t.tgname),
           pg_get_triggerdef(t.oid) || CASE t.tgenabled WHEN 'O' THEN '' ELSE ' (disabled)' END,
           concat(format('DROP TRIGGER IF EXISTS %I ON %s', t.tgname, r.place), '; ', pg_get_triggerdef(t.oid))
      FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal AND t.tgparentid = 0
    UNION ALL
    SELECT 'function', f.place, md5(concat_ws(' ', f.prosrc, f.proconfig::text, f.prosecdef, f.provolatile, f.prorettype::regtype)), NULL
      FROM function f
    UNION ALL
    SELECT 'owner', o.place, pg_get_userbyid(o.owner), NULL
      FROM (SELECT 'messages' AS place, n.nspowner AS owner FROM pg_namespace n WHERE n.nspname = 'messages'
            UNION ALL SELECT r.place, r.relowner FROM relation r
            UNION ALL SELECT f.place, f.proowner FROM function f) o
    UNION ALL
    -- Grants to the group roles and PUBLIC belong to the release; those to others do not.
    SELECT DISTINCT 'grant', format('%s on %s to %s', g.privilege_type, g.place, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END), '', NULL
      FROM (SELECT 'messages' AS place, a.* FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a WHERE n.nspname = 'messages'
            UNION ALL SELECT r.place, a.* FROM relation r CROSS JOIN aclexplode(r.relacl) a
            UNION ALL SELECT f.place, a.* FROM function f CROSS JOIN aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a) g
     WHERE g.grantee = 0 OR g.grantee::regrole::text ~ '^messages_(publisher|consumer|observer|upkeep|admin|raw|reader|pipeline|limited)$'
$$;
COMMENT ON FUNCTION messages.release_catalog() IS
    'The objects of the schema as they are now, each with its definition, and the SQL that makes it again where the installation does not.';
