CREATE OR REPLACE VIEW messages.result_count WITH (security_barrier) AS
SELECT queue_name, result, count(*) AS messages, count(*) FILTER (WHERE remedy = 'requeued') AS requeued,
       count(*) FILTER (WHERE remedy = 'dismissed') AS dismissed, min(archived_at) AS first_at, max(archived_at) AS last_at
  FROM messages.archive_rows
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)
 GROUP BY queue_name, result;
COMMENT ON VIEW messages.result_count IS 'How messages ended, by queue and result. Reads the whole archive.';
