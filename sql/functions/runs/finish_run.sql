CREATE OR REPLACE FUNCTION messages.finish_run(run_id text, summary jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    finished messages.pipeline_run;
BEGIN
    IF finish_run.summary IS NULL THEN
        RAISE EXCEPTION 'summary is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
    END IF;
    UPDATE messages.pipeline_run r
       SET finished_at = coalesce(r.finished_at, clock_timestamp()), summary = coalesce(r.summary, finish_run.summary)
     WHERE r.started_by = session_user AND r.run_id = finish_run.run_id
    RETURNING * INTO finished;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', coalesce(quote_literal(left(finish_run.run_id, 250)), 'NULL') USING ERRCODE = 'PQ004',
            HINT = 'Finish it as the login that began it.';
    END IF;
    -- What such a run published is recorded in the transaction that publishes it, and nowhere else.
    IF finished.pipeline IN ('publish', 'publish stream') THEN
        RAISE EXCEPTION 'run % publishes, and is finished by messages.publish_staged()', quote_literal(finish_run.run_id)
            USING ERRCODE = 'PQ004', HINT = 'Finish runs of pipelines only.';
    END IF;
    RETURN finished.summary;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', finish_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.finish_run(text, jsonb) IS
    'Records that a run is done and returns its summary; of two concurrent calls both return that of the first. PQ004: this login did not begin it, no summary, or publish_staged() finishes it; PQ016: a transaction that finishes it stayed open for more than three seconds, or waits for this one.';
