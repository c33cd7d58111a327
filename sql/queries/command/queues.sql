-- All queues with their policies.
SELECT * FROM messages.queue_policy ORDER BY queue_name
