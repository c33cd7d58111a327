CREATE OR REPLACE FUNCTION messages.open_dispatches(queue_name text DEFAULT NULL, dag_id text DEFAULT NULL)
RETURNS SETOF messages.open_dispatch
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(open_dispatches.queue_name, 'consume') WHERE open_dispatches.queue_name IS NOT NULL;
    RETURN QUERY
    SELECT d.dispatch_id, d.queue_name, d.dag_id, d.run_id, d.ids, d.opened_at, d.started_at, d.seen_at FROM messages.dispatch d
     WHERE d.ended_at IS NULL
       AND (open_dispatches.queue_name IS NULL OR d.queue_name = open_dispatches.queue_name COLLATE "default")
       AND (open_dispatches.dag_id IS NULL OR d.dag_id = open_dispatches.dag_id)
       AND ((SELECT r.everything FROM messages.session_reach r) OR d.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY d.dispatch_id;
END $$;
COMMENT ON FUNCTION messages.open_dispatches(text, text) IS
    'The dispatches whose run has not ended as far as the queue knows, oldest first; of one queue or DAG, or of all that this login may see. PQ001: unknown queue.';
