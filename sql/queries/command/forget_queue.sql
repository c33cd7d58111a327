-- Removes what the archive has of a queue.
DELETE FROM messages.message_archive WHERE queue_name = %s
