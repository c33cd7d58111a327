-- Those of these functions that this login may not call.
SELECT array_agg(DISTINCT p.proname ORDER BY p.proname)
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'messages' AND p.proname = ANY (%s) AND NOT has_function_privilege(p.oid, 'EXECUTE')
