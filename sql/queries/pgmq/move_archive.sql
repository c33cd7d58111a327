-- As archived now, because our archive begins with the installation.
WITH moved AS (
    DELETE FROM pgmq.{table} WHERE msg_id IN (SELECT a.msg_id FROM pgmq.{table} a ORDER BY a.msg_id LIMIT {at_most} FOR UPDATE SKIP LOCKED)
    RETURNING msg_id, read_ct, enqueued_at, archived_at, message, nullif(to_jsonb({table}) -> 'headers', 'null') AS headers),
kept AS (
    INSERT INTO messages.message_archive (created_at, attempts, queue_name, result, handled_by, details, reference, headers, message)
    SELECT o.enqueued_at, least(o.read_ct, 32767), {queue_name}, 'success', 'pgmq', 'archived by PGMQ at ' || o.archived_at, 'pgmq ' || o.msg_id,
           o.headers, coalesce(o.message, 'null')
      FROM (SELECT * FROM moved ORDER BY msg_id) o
    RETURNING 1)
SELECT count(*) FROM kept
