CREATE OR REPLACE FUNCTION messages.lock_publish_run(run_id text, batch bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    run messages.pipeline_run;
BEGIN
    IF lock_publish_run.run_id IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM messages.begin_run(lock_publish_run.run_id, CASE WHEN batch IS NULL THEN 'publish' ELSE 'publish stream' END);
    SELECT * INTO run FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = lock_publish_run.run_id FOR UPDATE;
    IF batch < (run.summary ->> 'batch')::bigint THEN
        RAISE EXCEPTION 'stream % has published batch %, and is now given batch % again',
            quote_literal(lock_publish_run.run_id), run.summary ->> 'batch', batch
            USING ERRCODE = 'PQ004', HINT = 'Its checkpoint is older than what was published. Restore the newest one, or begin a new one.';
    ELSIF batch IS NULL OR batch = (run.summary ->> 'batch')::bigint THEN
        RETURN run.summary;
    END IF;
    RETURN NULL;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', lock_publish_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_publish_run(text, bigint) IS
    'Locks a run, or a stream whose last batch is remembered, so that of two concurrent calls the second waits. Returns what it published before, else NULL. PQ004: the name of another pipeline''s run, or a batch before the last; PQ016: a transaction that publishes it stays open for more than three seconds, or waits for this one.';
