-- The partitions of a table with their bounds and pages, or the table without any. An empty one has no pages, whatever its
-- TOAST has. TOAST, with large bodies, counts for the size of a piece, but a sample looks at the other pages.
SELECT bounds[1]::timestamptz, bounds[2]::timestamptz,
       CASE WHEN pg_relation_size(c.oid) > 0 THEN pg_table_size(c.oid) / 8192 ELSE 0 END,
       pg_relation_size(c.oid) / 8192
  FROM pg_class c
  LEFT JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid),
                                 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS bounds ON true
 WHERE c.oid = %(table)s::regclass
    OR c.oid IN (SELECT t.relid FROM pg_partition_tree(%(table)s::regclass) t WHERE t.isleaf)
 ORDER BY 1
