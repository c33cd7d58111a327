SELECT d.dispatch_id, d.dag_id, d.run_id, cardinality(d.ids) AS messages, d.ids[1:5] AS ids, d.opened_at, d.started_at, d.seen_at
  FROM messages.dispatch_overview d
 WHERE d.queue_name = %(queue_name)s AND d.ended_at IS NULL
 ORDER BY d.dispatch_id DESC LIMIT 50
