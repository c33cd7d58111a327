CREATE OR REPLACE FUNCTION messages.record_locked_batch(lock_token uuid, queue_name text, ids bigint[], locked_by text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_queue(record_locked_batch.queue_name, 'consume');
    INSERT INTO messages.locked_batch (lock_token, queue_name, ids, locked_by)
    VALUES (record_locked_batch.lock_token, record_locked_batch.queue_name, record_locked_batch.ids, record_locked_batch.locked_by);
END $$;
COMMENT ON FUNCTION messages.record_locked_batch(uuid, text, bigint[], text) IS
    'Records what another session has locked with lock_ready and is about to work on: if that session dies, the record says whose attempt it was. PQ001: unknown queue.';
