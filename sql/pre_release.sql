-- A schema from before the first release may call itself version 1, too: what it recorded of itself tells. The number is made by
-- the query of queries/install/is_pre_release.sql.
DO $$
BEGIN
    IF (SELECT array_agg(m.version) FROM messages.schema_migration m) = '{1}'
       AND (SELECT md5(string_agg(known.name, ',' ORDER BY known.name COLLATE "C")) FROM (
                SELECT o.name FROM messages.release_object o WHERE o.kind = 'column'
                UNION ALL                  -- a copy of the schema without its rows
                SELECT format('%I.%I', c.relname, a.attname)
                  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 WHERE c.relnamespace = 'messages'::regnamespace AND NOT EXISTS (SELECT FROM messages.release_object o WHERE o.kind = 'column')) known
             WHERE split_part(known.name, '.', 1) = ANY ('{dead_message,dispatch,lane,message,message_archive,queue,timer}'))
           <> '532453f646d7677398130ebcaecdfc37' THEN
        RAISE EXCEPTION 'schema messages is a pre-release schema' USING ERRCODE = 'PQ019',
            HINT = 'Drain or dump it, then uninstall and install: psql -f sql/uninstall.sql, or pgqueue uninstall.';
    END IF;
END $$;
