-- Unfinished messages in the order in which they will be leased. The body as text, because a float would not show a number to its last digit.
SELECT id, CASE WHEN lock_expires_at > clock_timestamp() THEN 'leased'
                WHEN visible_at = 'infinity' THEN 'behind'
                WHEN visible_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
       priority, attempts, clock_timestamp() - created_at AS age, created_at,
       nullif(visible_at, 'infinity') AS visible_at, lock_expires_at, locked_by, reference, topic, group_key,
       last_error, headers, message::text AS message
  FROM messages.message m WHERE queue_name = %s ORDER BY m.priority DESC, m.visible_at, m.id LIMIT %s  -- the columns, not what is selected: the index has them
