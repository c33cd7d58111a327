-- The functions among these that this login may call, and whether it may work on the tables themselves.
SELECT coalesce(array_agg(p.proname::text) FILTER (WHERE has_function_privilege(p.oid, 'EXECUTE')), '{}'),
       has_table_privilege('messages.message', 'UPDATE')
  FROM pg_catalog.pg_proc p WHERE p.pronamespace = to_regnamespace('messages') AND p.proname = ANY (%s)
