-- A task publishes under dag/run/task/map index, a run is all that begins with dag/run/. Any fifty: to sort them would read them all.
(SELECT m.id, m.queue_name, m.reference, m.created_at, NULL AS result, NULL AS resolution
   FROM messages.message_overview m WHERE m.reference ~>=~ %(first)s AND m.reference ~<~ %(beyond)s LIMIT 50)
UNION ALL
(SELECT a.id, a.queue_name, a.reference, a.created_at, a.result, a.resolution
   FROM messages.archive_overview a WHERE a.reference ~>=~ %(first)s AND a.reference ~<~ %(beyond)s LIMIT 50)
 ORDER BY id
