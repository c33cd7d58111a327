CREATE OR REPLACE FUNCTION messages.begin_run(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known messages.pipeline_run;
BEGIN
    INSERT INTO messages.pipeline_run (run_id, pipeline) VALUES (begin_run.run_id, begin_run.pipeline)
    ON CONFLICT (run_id) DO NOTHING;
    SELECT * INTO known FROM messages.pipeline_run r WHERE r.run_id = begin_run.run_id;
    IF known.pipeline <> begin_run.pipeline THEN
        RAISE EXCEPTION 'run % is one of the pipeline %, not of %', quote_literal(begin_run.run_id), known.pipeline, begin_run.pipeline
            USING ERRCODE = 'PQ004', HINT = 'Give each run of each pipeline a name of its own.';
    END IF;
    RETURN known.summary;
END $$;
COMMENT ON FUNCTION messages.begin_run(text, text) IS
    'Notes that a run of a pipeline starts; returns its summary if it finished before, else NULL. PQ004: the name is another pipeline''s.';
