-- The first of these names that no queue has.
SELECT name FROM unnest(%(queue_names)s::text[]) AS name
 WHERE NOT EXISTS (SELECT FROM messages.queue_overview q WHERE q.queue_name = name)
 LIMIT 1
