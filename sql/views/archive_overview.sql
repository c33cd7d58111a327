CREATE OR REPLACE VIEW messages.archive_overview WITH (security_barrier) AS
SELECT id, queue_name, result, created_at, leased_at, archived_at, attempts, handled_by,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN details END AS details,
       reference, requeues,
       requeued_from, remedy, remedied_at, remedied_by, requeued_as, dismissed_for, pg_column_size(message) AS body_bytes,
       topic, group_key, fingerprint, output,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN failure
            WHEN failure ? 'error' THEN jsonb_build_object('error', failure -> 'error') END AS failure
  FROM messages.archive_rows
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.archive_overview IS 'Finished messages, without bodies and headers; of an error, only whoever may read the bodies sees more than its class.';
