-- Refuses to remove a schema that is not ours, and our schema while objects that the installation did not make are in it or depend on
-- it, because those belong to somebody else. It only reads the catalogs, because a superuser may remove the schema.
DO $$
DECLARE
    ours CONSTANT text[] := pg_catalog.string_to_array('archive_overview archive_policy archive_removal archive_retention archive_rows audit dead_message '
        'dedup dispatch dispatch_overview dropped_queue ended_message failed_attempt history history_cause history_policy history_progress inbox lane '
        'leased_dead_message leased_message mark_number message message_archive message_archive_default message_id_seq message_overview '
        'message_rows open_dispatch pipeline_run publish_stage queue queue_grant queue_overview queue_status notifications_paused_until '
        'schema_migration session_reach staged_message timer topic_binding unused_sequence maintenance_failure maintenance_run', ' ');
    others text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- The schema of a release has this column, see bootstrap.sql.
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('messages.maintenance_run') AND attname = 'server') THEN
        RAISE EXCEPTION 'schema messages of database % is not ours, or older than the first release', quote_ident(current_database())
            USING ERRCODE = 'PQ019', HINT = 'Nothing was removed. Dump what you need and drop the schema yourself.';
    END IF;
    WITH has AS (
        SELECT 'pg_class'::regclass AS kind, c.oid, c.relname = ANY (ours) OR c.relname ~ '^(mark|publish_stage)_[0-9]+$' AND c.relowner = n.nspowner
               OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid AND i.inhparent = to_regclass('messages.archive_rows'))
               -- The sequence of an identity column goes with its table.
               OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i') AS made
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'messages' AND c.relkind NOT IN ('i', 'I')
        UNION ALL
        -- Each of ours has both, and grants.sql refuses an installation next to others.
        SELECT 'pg_proc'::regclass, p.oid, p.proacl IS NOT NULL AND obj_description(p.oid, 'pg_proc') IS NOT NULL
          FROM pg_proc p WHERE p.pronamespace = to_regnamespace('messages')
        UNION ALL
        SELECT 'pg_type'::regclass, t.oid, true FROM pg_type t
         WHERE t.typnamespace = to_regnamespace('messages') AND (t.typrelid <> 0 OR t.typelem <> 0)),
    -- Objects in the schema, and objects that refer to it or its contents, such as a view or a foreign key of another schema.
    other AS (
        SELECT d.classid, d.objid, d.objsubid FROM pg_depend d
          LEFT JOIN has h ON h.kind = d.classid AND h.oid = d.objid LEFT JOIN has named ON named.kind = d.refclassid AND named.oid = d.refobjid
         CROSS JOIN pg_identify_object_as_address(d.classid, d.objid, d.objsubid) a
         WHERE d.deptype = 'n' AND (named.oid IS NOT NULL OR d.refclassid = 'pg_namespace'::regclass AND d.refobjid = to_regnamespace('messages'))
           AND CASE WHEN h.oid IS NOT NULL THEN NOT h.made
                    WHEN d.classid IN ('pg_rewrite'::regclass, 'pg_constraint'::regclass, 'pg_attrdef'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass)
                    THEN a.object_names[1] <> 'messages' ELSE true END)
    SELECT string_agg(one.name, ', ' ORDER BY one.name) INTO others
      FROM (SELECT DISTINCT pg_describe_object(o.classid, o.objid, o.objsubid) AS name FROM other o ORDER BY 1 LIMIT 10) one;
    IF others IS NOT NULL THEN
        RAISE EXCEPTION 'the installation did not make: %', others
            USING ERRCODE = 'PQ019', HINT = 'Nothing was removed. Move it to another schema or drop it; what depends on schema messages has to go first.';
    END IF;
END $$;
