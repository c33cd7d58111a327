-- How many messages ended in which way.
SELECT result, count(*) FROM messages.message_archive
 WHERE queue_name = coalesce(%(queue_name)s, queue_name) GROUP BY result ORDER BY result
