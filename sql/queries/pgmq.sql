-- Moves a queue of the extension PGMQ: first what is there, in batches, then the rest behind a lock, with a trigger for what comes later.
-- core.pgmq sends these, with the names of its tables in place of {table}.

-- name: pgmq_tables
-- PGMQ writes the name in small letters, and some versions as it is.
SELECT (SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace('pgmq') AND c.relkind IN ('r', 'p')
           AND c.relname IN (kind.prefix || %(name)s::text, lower(kind.prefix || %(name)s::text)) ORDER BY c.relname = kind.prefix || %(name)s::text DESC LIMIT 1)
  FROM (VALUES ('q_'), ('a_')) AS kind (prefix)

-- name: pgmq_left
SELECT count(*), max(vt) FROM pgmq.{table}

-- name: pgmq_move
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

-- name: pgmq_move_archive
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

-- name: pgmq_lock
SET LOCAL lock_timeout = '2s';
LOCK TABLE pgmq.{table} IN SHARE ROW EXCLUSIVE MODE

-- name: pgmq_forward
-- Messages that a publisher sends there are published here from now on, in the same transaction; pgmq.send still returns its msg_id.
CREATE OR REPLACE FUNCTION pgmq.forward_to_messages() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DELETE FROM %s WHERE msg_id = $1', TG_RELID::regclass) USING NEW.msg_id;
    PERFORM messages.publish(TG_ARGV[0], coalesce(NEW.message, 'null'), visible_at => NEW.vt, headers => nullif(to_jsonb(NEW) -> 'headers', 'null'),
                             reference => 'pgmq ' || NEW.msg_id);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION pgmq.forward_to_messages() FROM PUBLIC;
CREATE OR REPLACE TRIGGER forward_to_messages AFTER INSERT ON pgmq.{table} FOR EACH ROW EXECUTE FUNCTION pgmq.forward_to_messages({queue_name})
