CREATE OR REPLACE FUNCTION messages.release_differences()
RETURNS TABLE (kind text, name text, difference text, mend text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT kind, name, CASE WHEN now.kind IS NULL THEN 'missing' WHEN installed.kind IS NULL THEN 'added' ELSE 'changed' END, installed.mend
      FROM messages.release_object installed FULL JOIN messages.release_catalog() now USING (kind, name)
     WHERE now.definition IS DISTINCT FROM installed.definition AND kind NOT IN ('cluster', 'internal')
       -- A table or type of somebody else is in nobody's way, and its columns and owner come with it.
       AND (installed.kind IS NOT NULL OR kind IN ('index', 'trigger', 'constraint', 'function', 'grant')
            OR kind = 'column' AND split_part(name, '.', 1) IN (SELECT o.name FROM messages.release_object o WHERE o.kind IN ('table', 'type')))
     ORDER BY array_position('{table,column,options,sequence,type,view,function}', kind), kind = 'trigger', kind = 'index', name
$$;
COMMENT ON FUNCTION messages.release_differences() IS
    'What was changed in the schema since it was installed: objects that are missing, changed or added.';
