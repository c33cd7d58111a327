CREATE OR REPLACE FUNCTION messages.check_run_begun(run_id text, pipeline text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM messages.pipeline_run r
                    WHERE r.started_by = session_user AND r.run_id = check_run_begun.run_id AND r.pipeline = check_run_begun.pipeline) THEN
        RAISE EXCEPTION 'there is no run % of the pipeline %', coalesce(quote_literal(left(check_run_begun.run_id, 250)), 'NULL'), check_run_begun.pipeline
            USING ERRCODE = 'PQ004', HINT = format('Begin it: SELECT messages.begin_run(run_id, %L)', check_run_begun.pipeline);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_run_begun(text, text) IS 'Raises PQ004 unless this login began this run of this pipeline.';
