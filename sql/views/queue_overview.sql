CREATE OR REPLACE VIEW messages.queue_overview WITH (security_barrier) AS
SELECT queue_name, max_attempts, lease_for, backoff_first, backoff_max, handler_timeout, retention, dedup_window, max_leased,
       max_leased_per_group, rate_limit, rate_period, rate_burst, max_body_bytes, fair_by,
       notify, on_dead_head, paused, created_at
  FROM messages.queue
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.queue_overview IS 'The queues and their policies.';
