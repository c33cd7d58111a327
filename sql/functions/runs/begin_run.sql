CREATE OR REPLACE FUNCTION messages.begin_run(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_length('run_id', begin_run.run_id, 1, 250, required => true),
            messages.check_length('pipeline', begin_run.pipeline, 1, 250, required => true);
    INSERT INTO messages.pipeline_run (run_id, pipeline) VALUES (begin_run.run_id, begin_run.pipeline)
    ON CONFLICT (started_by, run_id) DO NOTHING;
    RETURN messages.run_summary(begin_run.run_id, begin_run.pipeline);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', begin_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.begin_run(text, text) IS
    'Records that a run of a pipeline starts; returns its summary if it has already finished, else NULL. Each login has names of its own. PQ004: no name, or the name of another pipeline''s run; PQ016: a transaction that begins it stays open for more than three seconds, or waits for this one.';
