-- The first of these functions that the login may not call.
SELECT p.proname
  FROM unnest(%(functions)s::text[]) WITH ORDINALITY AS wanted (name, place)
  JOIN pg_catalog.pg_proc p ON p.proname = wanted.name AND p.pronamespace = to_regnamespace('messages')
 WHERE NOT has_function_privilege(p.oid, 'EXECUTE')
 ORDER BY wanted.place LIMIT 1
