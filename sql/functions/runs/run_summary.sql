CREATE OR REPLACE FUNCTION messages.run_summary(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known messages.pipeline_run;
BEGIN
    SELECT * INTO known FROM messages.pipeline_run r WHERE r.started_by = session_user AND r.run_id = run_summary.run_id;
    IF known.pipeline <> run_summary.pipeline THEN
        RAISE EXCEPTION 'run % belongs to pipeline %, not to %', quote_literal(run_summary.run_id), known.pipeline, run_summary.pipeline
            USING ERRCODE = 'PQ004', HINT = 'Give each run of each pipeline a name of its own.';
    END IF;
    RETURN known.summary;
END $$;
COMMENT ON FUNCTION messages.run_summary(text, text) IS
    'The summary of a run of a pipeline that this login began, NULL until it finishes or if it never began. PQ004: the name is that of another pipeline''s run.';
