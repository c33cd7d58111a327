-- Whoever installs runs what hangs on the tables: a trigger, a default, a check. Refuses what no release has, so that nobody who may
-- write to the schema gets the rights of a superuser who installs. It reads the catalogs alone, and the locks keep it true.
DO $$
DECLARE
    own   CONSTANT text[] := '{schema_migration,release_object}';
    doors CONSTANT text[] := '{message_published,message_changed,message_archived}';
    views CONSTANT text[] := '{session_reach,queue_overview,message_overview,dispatch_overview,archive_overview,result_count}';
    -- Expressions may call these functions although they are not immutable.
    calls CONSTANT text[] := '{timestamptz_pl_interval,date_trunc,gen_random_uuid,current_setting,pg_current_xact_id,nextval,clock_timestamp,pg_column_size}';
    thing record;
BEGIN
    FOR thing IN
        SELECT c.oid, CASE WHEN c.relname = ANY (own) THEN 'EXCLUSIVE' ELSE 'ROW EXCLUSIVE' END AS mode FROM pg_class c
         WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p')
           AND (NOT c.relispartition OR c.relname IN ('message_rows', 'archive_rows')) AND c.relname !~ '^publish_stage_[0-9]+$' ORDER BY c.relname
    LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', thing.oid::regclass, thing.mode);
    END LOOP;
    FOR thing IN
        WITH relation AS (
            SELECT c.oid, c.relname, c.relkind, c.oid::regclass AS place FROM pg_class c
             WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
            UNION
            SELECT c.oid, c.relname, c.relkind, c.oid::regclass FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
              JOIN pg_class parent ON parent.oid = i.inhparent
             WHERE parent.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'f')),
        expression AS (
            SELECT format('default of column %s.%I', r.place, a.attname) AS what, format('ALTER TABLE %s ALTER %I DROP DEFAULT', r.place, a.attname) AS fix,
                   d.adbin::text AS tree
              FROM relation r JOIN pg_attrdef d ON d.adrelid = r.oid JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
             WHERE a.attgenerated = ''
            UNION ALL
            SELECT format('generated column %s.%I', r.place, a.attname), format('ALTER TABLE %s ALTER %I DROP EXPRESSION', r.place, a.attname), d.adbin::text
              FROM relation r JOIN pg_attrdef d ON d.adrelid = r.oid JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
             WHERE a.attgenerated <> ''
            UNION ALL
            SELECT format('constraint %I on %s', k.conname, r.place), format('ALTER TABLE %s DROP CONSTRAINT %I', r.place, k.conname),
                   concat(k.conbin::text, x.indexprs::text, x.indpred::text)
              FROM relation r JOIN pg_constraint k ON k.conrelid = r.oid LEFT JOIN pg_index x ON x.indexrelid = k.conindid
            UNION ALL
            SELECT format('index %s', x.indexrelid::regclass), format('DROP INDEX %s', x.indexrelid::regclass), concat(x.indexprs::text, x.indpred::text)
              FROM relation r JOIN pg_index x ON x.indrelid = r.oid
            UNION ALL
            SELECT format('partition key of table %s', r.place), format('DROP TABLE %s', r.place), p.partexprs::text
              FROM relation r JOIN pg_partitioned_table p ON p.partrelid = r.oid
            UNION ALL
            SELECT format('trigger %I on %s', t.tgname, r.place), format('DROP TRIGGER %I ON %s', t.tgname, r.place), t.tgqual::text
              FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid WHERE t.tgparentid = 0)
        SELECT e.what, e.fix, format('calls %s', p.oid::regprocedure) AS why
          FROM expression e CROSS JOIN LATERAL regexp_matches(e.tree, ':(?:op)?funcid ([0-9]+)', 'g') AS called JOIN pg_proc p ON p.oid = called[1]::oid
         WHERE NOT (p.pronamespace = 'pg_catalog'::regnamespace AND (p.provolatile = 'i' OR p.proname = ANY (calls)))
        UNION ALL
        SELECT format('trigger %I on %s', t.tgname, r.place), format('DROP TRIGGER %I ON %s', t.tgname, r.place), format('calls %s', p.oid::regprocedure)
          FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid JOIN pg_proc p ON p.oid = t.tgfoid
         WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND NOT (p.pronamespace = 'messages'::regnamespace AND p.proname = ANY (doors))
        UNION ALL
        SELECT format('constraint %I on %s', k.conname, k.conrelid::regclass), format('ALTER TABLE %s DROP CONSTRAINT %I', k.conrelid::regclass, k.conname),
               format('refers to %s', r.place)
          FROM relation r JOIN pg_constraint k ON k.confrelid = r.oid WHERE k.conrelid NOT IN (SELECT oid FROM relation)
        UNION ALL
        SELECT format('rule %I on %s', w.rulename, r.place), format('DROP RULE %I ON %s', w.rulename, r.place), 'rewrites statements'
          FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid WHERE w.rulename <> '_RETURN'
        UNION ALL
        SELECT format('policy %I on %s', p.polname, r.place), format('DROP POLICY %I ON %s', p.polname, r.place), 'filters rows'
          FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
        UNION ALL
        SELECT format('%s %s', d.kind, r.place), format('DROP %s %s', d.kind, r.place), 'reads something else'
          FROM relation r JOIN (VALUES ('v', 'VIEW'), ('m', 'MATERIALIZED VIEW'), ('f', 'FOREIGN TABLE')) AS d (relkind, kind) ON d.relkind = r.relkind::text
         WHERE NOT (r.relkind = 'v' AND r.relname = ANY (views))
        UNION ALL
        SELECT format('column %s.%I', r.place, a.attname), format('ALTER TABLE %s ALTER %I TYPE text', r.place, a.attname), format('has type %s', t.oid::regtype)
          FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped JOIN pg_type t ON t.oid = a.atttypid
         WHERE t.typnamespace <> 'pg_catalog'::regnamespace AND r.relkind <> 'v'
        UNION ALL
        (SELECT DISTINCT ON (p.proname) format('function %s', p.oid::regprocedure), format('DROP FUNCTION %s', p.oid::regprocedure), 'has the name of another one'
           FROM pg_proc p
          WHERE p.pronamespace = 'messages'::regnamespace
            AND EXISTS (SELECT FROM pg_proc other WHERE other.pronamespace = p.pronamespace AND other.proname = p.proname AND other.oid <> p.oid)
          -- Name the function that this transaction did not make; if it made neither, the younger one.
          ORDER BY p.proname, age(p.xmin) <= 0, age(p.xmin))
        LIMIT 1
    LOOP
        RAISE EXCEPTION '% %, and would run as %', thing.what, thing.why, session_user USING ERRCODE = 'insufficient_privilege', HINT = thing.fix;
    END LOOP;
END $$;
