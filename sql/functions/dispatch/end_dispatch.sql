CREATE OR REPLACE FUNCTION messages.end_dispatch(
    dag_id       text,
    run_id       text,
    result       text,
    details      text   DEFAULT NULL,
    failed_tasks text[] DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    known    messages.dispatch;
    run      text := left(concat_ws('/', end_dispatch.dag_id, end_dispatch.run_id), 600);
    cause    text := CASE WHEN end_dispatch.result = 'failed' THEN format('DAG %s failed', end_dispatch.dag_id)
                          || coalesce(nullif(': ' || array_to_string(end_dispatch.failed_tasks[:20], ', '), ': '), '')
                          ELSE format('the run of DAG %s ended: %s', end_dispatch.dag_id, end_dispatch.result) END;
    why      text;
    failure  jsonb;
    finished bigint;
BEGIN
    PERFORM messages.check_choice('result', end_dispatch.result, '{success,failed,lost,refused}', required => true);
    known := messages.lock_dispatch(end_dispatch.dag_id, end_dispatch.run_id);
    IF known.dispatch_id IS NULL THEN
        RETURN NULL;
    END IF;
    IF known.ended_at IS NOT NULL AND known.result <> 'success' AND end_dispatch.result = 'success' THEN
        -- It was cleared and ran again, and its tasks did not ask for the messages.
        known := messages.reopen_dispatch(known);
    END IF;
    IF known.ended_at IS NOT NULL THEN
        RETURN 0;
    END IF;
    IF end_dispatch.result = 'failed' THEN
        SELECT known.failures -> t.task_id INTO failure FROM unnest(end_dispatch.failed_tasks) WITH ORDINALITY AS t (task_id, n)
         WHERE known.failures ? t.task_id ORDER BY t.n LIMIT 1;
        -- Whatever the error says of this message: its class, the DAG and the tasks are the cause.
        failure := failure || jsonb_build_object('cause', cause);
    END IF;
    why := left(coalesce(end_dispatch.details, concat_ws(': ', cause, failure ->> 'error', nullif(failure ->> 'message', ''))), 4000);
    IF end_dispatch.result = 'success' THEN
        SELECT count(*) INTO finished FROM messages.archive(known.lock_token, known.ids, 'success', handled_by => run);
        -- What a run had failed with, and finished when it was cleared.
        UPDATE messages.dead_message d SET lock_token = known.lock_token, lock_expires_at = clock_timestamp() + interval '1 minute', locked_by = run
         WHERE d.id = ANY (known.ids) AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp());
        finished := finished + (SELECT count(*) FROM messages.dismiss(known.lock_token, known.ids, format('run %s succeeded', end_dispatch.run_id), run));
    ELSIF end_dispatch.result = 'failed' AND known.on_failure = 'fail' THEN
        SELECT count(*) INTO finished FROM messages.archive(known.lock_token, known.ids, 'failed', why, handled_by => run, failure => failure);
    ELSE
        -- What a deleted run did is unknown, so its attempt counts.
        SELECT count(*) INTO finished FROM messages.release(
            known.lock_token, known.ids, count_attempt => end_dispatch.result <> 'refused', details => why, failure => failure,
            back_off => end_dispatch.result = 'failed');
    END IF;
    UPDATE messages.dispatch d SET ended_at = clock_timestamp(), seen_at = clock_timestamp(), result = end_dispatch.result, details = why,
           failures = NULL
     WHERE d.dispatch_id = known.dispatch_id;
    RETURN finished;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a message of run %L', left(end_dispatch.run_id, 250)), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.end_dispatch(text, text, text, text, text[]) IS
    'Ends the dispatch of a run and returns how many messages this finished or gave back; 0 if it had ended, NULL if the run has no dispatch. success archives its messages; failed does what on_failure of the dispatch says, and its cause is the DAG, failed_tasks and the class of the error that record_task_failure recorded of the first of them; lost (the run was deleted) delivers them again; refused (the run was never made) does so without an attempt. A run that was cleared and now succeeds finishes its messages that still wait, and dismisses those that are dead. PQ004: bad result; PQ016: another transaction is ending it, or has one of its messages, for more than three seconds.';
