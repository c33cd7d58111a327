-- The group roles that may call a function of the schema, read a table of it, or use it at all, those with the fewest
-- privileges first; without the ones whose privileges this login has.
SELECT r.rolname, quote_ident(session_user)
  FROM unnest(ARRAY['publisher', 'consumer', 'observer', 'upkeep', 'reader', 'pipeline', 'admin']) WITH ORDINALITY AS g (name, place)
  JOIN pg_catalog.pg_roles r ON r.rolname = 'messages_' || g.name
 WHERE NOT pg_has_role(r.oid, 'USAGE')
   AND (%(kind)s = 'schema'
        OR EXISTS (SELECT FROM pg_catalog.pg_proc p
                    WHERE %(kind)s = 'function' AND p.proname = %(name)s AND p.pronamespace = to_regnamespace('messages')
                      AND has_function_privilege(r.oid, p.oid, 'EXECUTE'))
        OR EXISTS (SELECT FROM pg_catalog.pg_class c
                    WHERE %(kind)s IN ('table', 'view') AND c.relname = %(name)s AND c.relnamespace = to_regnamespace('messages')
                      AND has_table_privilege(r.oid, c.oid, 'SELECT')))
 ORDER BY g.place
