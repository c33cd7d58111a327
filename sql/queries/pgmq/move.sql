-- A message that a worker of PGMQ has stays until its vt; a locked message is being read right now. Older versions have no headers.
WITH moved AS (
    DELETE FROM pgmq.{table} WHERE msg_id IN (
        SELECT q.msg_id FROM pgmq.{table} q WHERE q.read_ct = 0 OR q.vt <= clock_timestamp()
         ORDER BY q.msg_id LIMIT {at_most} FOR UPDATE SKIP LOCKED)
    RETURNING msg_id, vt, message, nullif(to_jsonb({table}) -> 'headers', 'null') AS headers),
published AS (
    SELECT messages.publish({queue_name}, coalesce(o.message, 'null'), visible_at => o.vt, headers => o.headers, reference => 'pgmq ' || o.msg_id)
      FROM (SELECT * FROM moved ORDER BY msg_id) o)
SELECT count(*) FROM published
