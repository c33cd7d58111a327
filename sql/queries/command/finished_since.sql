-- The messages that were archived after a time, in any queue or in one.
SELECT id, queue_name, result, attempts, handled_by, details, reference, archived_at,
       archived_at - leased_at AS run_time
  FROM messages.archive_overview
 WHERE archived_at > %(since)s AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
 ORDER BY archived_at, id
