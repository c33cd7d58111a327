-- The successes and the deaths of a period that ends now, by queue.
SELECT queue_name, count(*) FILTER (WHERE result = 'success'), count(*) FILTER (WHERE result NOT IN ('success', 'cancelled'))
  FROM messages.archive_overview WHERE archived_at > clock_timestamp() - %s::interval GROUP BY queue_name
