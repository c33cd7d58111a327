CREATE OR REPLACE VIEW messages.archive_overview AS
SELECT id, queue_name, result, created_at, leased_at, archived_at, attempts, handled_by, details, reference, requeues,
       requeued_from, remedy, remedied_at, remedied_by, requeued_as, dismissed_for, pg_column_size(message) AS body_bytes,
       topic, group_key, fingerprint, output, failure
  FROM messages.message_archive;
COMMENT ON VIEW messages.archive_overview IS 'Finished messages, without bodies and headers.';
