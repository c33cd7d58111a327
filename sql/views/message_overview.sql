CREATE OR REPLACE VIEW messages.message_overview WITH (security_barrier) AS
SELECT id, queue_name, priority, created_at, nullif(visible_at, 'infinity') AS visible_at, leased_at, lock_expires_at, locked_by, attempts, requeues,
       requeued_from, reference, expires_at, pg_column_size(message) AS body_bytes, topic, group_key, due_at,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN ltrim(last_error)
            ELSE substring(last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END AS last_error
  FROM messages.message_rows
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.message_overview IS 'Messages that are not finished, without bodies, headers and tokens; last_error is only the class of the error, unless this login may read the bodies; visible_at is NULL while a message waits behind others of its group.';
