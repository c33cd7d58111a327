-- All queues with their policies.
SELECT * FROM messages.queue ORDER BY queue_name
