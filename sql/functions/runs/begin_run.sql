CREATE OR REPLACE FUNCTION messages.begin_run(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    summary jsonb;
BEGIN
    PERFORM messages.check_name('run_id', begin_run.run_id), messages.check_name('pipeline', begin_run.pipeline);
    INSERT INTO messages.pipeline_run (run_id, pipeline) VALUES (begin_run.run_id, begin_run.pipeline)
    ON CONFLICT (run_id) DO NOTHING;
    summary := messages.run_summary(begin_run.run_id, begin_run.pipeline);
    IF summary IS NULL THEN
        -- Checked now and not at the end, when the work would be done and could not be recorded.
        PERFORM messages.check_run_owner(begin_run.run_id);
    END IF;
    RETURN summary;
END $$;
COMMENT ON FUNCTION messages.begin_run(text, text) IS
    'Records that a run of a pipeline starts; returns its summary if it has finished before, else NULL. PQ004: no name, the name of another pipeline''s run, or an unfinished run that another role started.';
