CREATE OR REPLACE FUNCTION messages.finish_run(run_id text, summary jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE messages.pipeline_run r
       SET finished_at = coalesce(r.finished_at, clock_timestamp()), summary = coalesce(r.summary, finish_run.summary)
     WHERE r.run_id = finish_run.run_id
    RETURNING r.summary
$$;
COMMENT ON FUNCTION messages.finish_run(text, jsonb) IS
    'Notes that a run is done and returns its summary: of two at once the first one''s.';
