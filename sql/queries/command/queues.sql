-- All queues with their policies.
SELECT * FROM messages.queue_overview ORDER BY queue_name
