-- Reading and writing on Spark: how a read is cut into pieces, where the log ends, which queues there are, a slot for a writer.
-- spark.source sends these.

-- name: rows
-- The rows of a read, as its options choose them.
SELECT {} FROM {} WHERE {}

-- name: extents
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

-- name: quantiles_of_ids
-- Ids that cut a table into pieces with about as many rows each, from a sample of its pages.
SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY id) FROM {} TABLESAMPLE SYSTEM (%s) REPEATABLE (1) WHERE {}

-- name: first_xid_since
-- The number of the first transaction that archived at a time or later.
SELECT min(xid) FROM messages.message_archive WHERE archived_at >= %s

-- name: log_end
-- Where the archive as a log ends on this server, and before which place messages were removed of it.
SELECT horizon, gone_before_xid FROM messages.archive_log_end({}, {}::text[])

-- name: unknown_queue
-- The first of these names that no queue has.
SELECT name FROM unnest(%(queue_names)s::text[]) AS name
 WHERE NOT EXISTS (SELECT FROM messages.queue_overview q WHERE q.queue_name = name)
 LIMIT 1

-- name: is_dedup_window
-- Whether a text is a duration that publish takes as dedup_window.
SELECT %s::text::interval BETWEEN '1 second' AND '366 days'

-- name: take_slot
-- Whether a slot of a job was free, which this transaction then has. A host that vanishes must not keep its slot
-- for the two hours of the system's default.
SELECT slot.taken,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_idle', '10', true) END,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_interval', '5', true) END,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_count', '3', true) END,
       CASE WHEN slot.taken THEN set_config('application_name', 'pgqueue spark publish', true) END
  FROM pg_try_advisory_xact_lock(
           hashtextextended(concat_ws('.', 'messages.publish_stage', session_user, %(stage_id)s::text, %(slot)s), 0)) AS slot (taken)
