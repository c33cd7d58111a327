-- The same without bodies, for a login that may read only the view.
SELECT id, CASE WHEN lock_expires_at > clock_timestamp() THEN 'leased'
                WHEN visible_at IS NULL THEN 'behind'
                WHEN visible_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
       priority, attempts, clock_timestamp() - created_at AS age, created_at,
       visible_at, lock_expires_at, locked_by, reference, topic, group_key,
       last_error, body_bytes
  FROM messages.message_overview WHERE id = ANY (ARRAY(SELECT messages.next_ids(%s, %s)))
 ORDER BY priority DESC, visible_at, id
