CREATE OR REPLACE VIEW messages.queue_policy WITH (security_barrier) AS
SELECT queue_name, max_attempts, lease_for, backoff_first, backoff_max, dedup_window, retention, notify, on_dead_head,
       max_body_bytes, max_leased, max_depth, handler_timeout, paused, created_at
  FROM messages.queue
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.queue_policy IS 'The queues and their policies.';
