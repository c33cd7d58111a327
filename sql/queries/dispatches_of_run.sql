SELECT d.queue_name, d.dag_id, d.run_id, cardinality(d.ids) AS messages, d.ids[1:50] AS ids, d.opened_at, d.ended_at, d.run_state, d.details
  FROM messages.dispatch_overview d
 WHERE d.dag_id = %(dag_id)s AND (%(run_id)s::text IS NULL OR d.run_id = %(run_id)s)
 ORDER BY d.ended_at IS NOT NULL, d.dispatch_id DESC LIMIT 50
