CREATE OR REPLACE FUNCTION messages.purge_queue(queue_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    deleted bigint;
BEGIN
    PERFORM FROM messages.queue q WHERE q.queue_name = purge_queue.queue_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(purge_queue.queue_name);
    END IF;
    WITH gone AS (
        DELETE FROM messages.message m
         WHERE m.queue_name = purge_queue.queue_name AND coalesce(m.lock_expires_at <= clock_timestamp(), true)
        RETURNING m.id),
    forgotten AS (
        DELETE FROM messages.dedup d USING gone WHERE d.queue_name = purge_queue.queue_name AND d.id = gone.id)
    SELECT count(*) INTO deleted FROM gone;
    PERFORM messages.repair_stuck_groups(purge_queue.queue_name);
    RETURN deleted;
END $$;
COMMENT ON FUNCTION messages.purge_queue(text) IS
    'Deletes the messages of a queue that are not leased, delayed ones too, without archiving them, and returns how many. Their dedup keys can be used again. PQ001: unknown queue.';
