-- The stretches of a table between two times, in their order, each with its pages. A stretch is a partition, or the time that
-- only the default partition covers; the queue is one stretch. An empty stretch has no pages, whatever its TOAST has. TOAST,
-- with large bodies, counts for the size of a piece, but a sample reads the other pages.
WITH leaf AS MATERIALIZED (
    SELECT bounds[1]::timestamptz AS begins, bounds[2]::timestamptz AS ends,
           CASE WHEN pg_relation_size(c.oid) > 0 THEN pg_table_size(c.oid) / 8192 ELSE 0 END AS pages,
           pg_relation_size(c.oid) / 8192 AS heap
      FROM pg_class c
      LEFT JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid),
                                     'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS bounds ON true
     WHERE c.oid = %(table)s::regclass
        OR c.oid IN (SELECT t.relid FROM pg_partition_tree(%(table)s::regclass) t WHERE t.isleaf)),
stretch AS (
    SELECT * FROM leaf WHERE begins IS NOT NULL
     UNION ALL
    SELECT lag(edge.ends) OVER (ORDER BY edge.begins), edge.begins, elsewhere.pages, elsewhere.heap
      FROM (SELECT begins, ends FROM leaf WHERE begins IS NOT NULL UNION ALL SELECT NULL, NULL) AS edge,
           (SELECT sum(pages)::bigint AS pages, sum(heap)::bigint AS heap FROM leaf WHERE begins IS NULL) AS elsewhere)
-- Of a NULL and a time, these functions return the time.
SELECT greatest(begins, %(from)s::timestamptz), least(ends, %(to)s::timestamptz), pages, heap
  FROM stretch
 WHERE greatest(begins, %(from)s::timestamptz) < least(ends, %(to)s::timestamptz) IS NOT FALSE
 ORDER BY 1 NULLS FIRST
