CREATE OR REPLACE FUNCTION messages.lock_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM messages.queue q WHERE q.queue_name = lock_queue.queue_name COLLATE "default" FOR NO KEY UPDATE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', lock_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.lock_queue(text) IS
    'Lets one transaction at a time count what a queue allows and take it, until its commit. PQ016: another held it for three seconds.';
