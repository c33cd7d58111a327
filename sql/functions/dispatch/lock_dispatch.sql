CREATE OR REPLACE FUNCTION messages.lock_dispatch(dag_id text, run_id text) RETURNS messages.dispatch
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    known messages.dispatch;
BEGIN
    SELECT * INTO known FROM messages.dispatch d
     WHERE d.dag_id = lock_dispatch.dag_id AND d.run_id = lock_dispatch.run_id
       AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume'))) FOR UPDATE;
    RETURN known;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('the dispatch of run %L of %L', left(lock_dispatch.run_id, 250), left(lock_dispatch.dag_id, 250)), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_dispatch(text, text) IS
    'Locks the dispatch of a run until the commit, and returns it; no row of it if there is none that this login may see. PQ016: another transaction held it for three seconds, or waits for this one.';
