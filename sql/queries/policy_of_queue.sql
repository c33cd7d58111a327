SELECT q.max_attempts, q.lease_for, q.backoff_first, q.backoff_max, q.handler_timeout, q.retention, q.dedup_window, q.max_leased,
       q.max_leased_per_group, q.rate_limit, q.rate_period, q.rate_burst, q.max_body_bytes, q.fair_by,
       q.notify, q.on_dead_head, q.created_at
  FROM messages.queue_overview q WHERE q.queue_name = %(queue_name)s
