CREATE OR REPLACE VIEW messages.archive_retention AS
SELECT q.queue_name, q.retention, q.created_at AS since FROM messages.queue q WHERE q.retention IS NOT NULL
UNION ALL
SELECT d.queue_name, d.retention, d.dropped_at FROM messages.dropped_queue d
 WHERE NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = d.queue_name);
COMMENT ON VIEW messages.archive_retention IS 'How long the archive keeps messages of queues that have a retention, or had one when they were dropped.';
