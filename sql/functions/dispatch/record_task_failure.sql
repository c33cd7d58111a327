CREATE OR REPLACE FUNCTION messages.record_task_failure(dag_id text, run_id text, task_id text, failure jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known messages.dispatch;
BEGIN
    PERFORM messages.check_length('task_id', record_task_failure.task_id, 1, 250, required => true),
            messages.check_outcomes(NULL, NULL, record_task_failure.failure);
    known := messages.lock_dispatch(record_task_failure.dag_id, record_task_failure.run_id);
    UPDATE messages.dispatch d
       SET failures = coalesce(d.failures, '{}') || jsonb_build_object(record_task_failure.task_id, record_task_failure.failure)
     WHERE d.dispatch_id = known.dispatch_id AND d.ended_at IS NULL AND record_task_failure.failure IS NOT NULL
       -- The cause needs one; a run may have thousands of tasks that fail.
       AND (SELECT count(*) FROM jsonb_object_keys(d.failures)) < 20;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION messages.record_task_failure(text, text, text, jsonb) IS
    'Records the error with which a task of a run failed for good, an object with error, message and traceback, which end_dispatch gives to the messages of the run. Returns false if the run has no open dispatch, or if twenty of its tasks have failed before. PQ004: a failure that is not an object, or too large; PQ016: another transaction is changing the dispatch.';
