CREATE OR REPLACE FUNCTION messages.dispatched_messages(dag_id text, run_id text) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known messages.dispatch;
    run   text := left(concat_ws('/', dispatched_messages.dag_id, dispatched_messages.run_id), 600);
    lost  record;
BEGIN
    SELECT * INTO known FROM messages.dispatch d
     WHERE d.dag_id = dispatched_messages.dag_id AND d.run_id = dispatched_messages.run_id
       AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no messages were dispatched to run % of %', quote_literal(dispatched_messages.run_id), quote_literal(dispatched_messages.dag_id)
            USING ERRCODE = 'PQ017', HINT = 'Only a run that a dispatcher started has messages; they are known for 30 days after its end.';
    END IF;
    -- Only who leases again locks it: a task may keep its transaction open for as long as it works.
    IF known.ended_at IS NOT NULL AND known.result <> 'success' THEN
        known := messages.lock_dispatch(known.dag_id, known.run_id);
        IF known.ended_at IS NOT NULL AND known.result <> 'success' THEN
            known := messages.reopen_dispatch(known);
        END IF;
    END IF;
    RETURN QUERY
    SELECT m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
           q.max_attempts, m.requeues, m.created_at, m.lock_token, m.lock_expires_at
      FROM messages.message_rows m JOIN messages.queue q USING (queue_name)
     WHERE m.id = ANY (known.ids) AND m.lock_token = known.lock_token
    UNION ALL
    SELECT a.id, a.queue_name, a.message, a.headers, a.reference, a.topic, a.group_key, a.priority, a.attempts,
           q.max_attempts, a.requeues, a.created_at, NULL, NULL
      FROM messages.archive_rows a JOIN messages.queue q USING (queue_name)
     WHERE a.id = ANY (known.ids)
       -- What somebody else finished or cancelled is not done once more, nor is what was requeued.
       AND (a.result IN ('success', 'cancelled') AND a.handled_by IS DISTINCT FROM run OR a.remedy = 'requeued') IS NOT TRUE
     ORDER BY id;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT m.id, CASE WHEN m.locked_by IS NULL THEN 'waits for its next attempt' ELSE format('is leased by %L', m.locked_by) END AS why INTO lost
      FROM messages.message_rows m WHERE m.id = ANY (known.ids)
     UNION ALL
    SELECT a.id, CASE WHEN a.remedy = 'requeued' THEN format('was requeued as message %s', a.requeued_as)
                      ELSE format('was finished by %L', a.handled_by) END
      FROM messages.archive_rows a WHERE a.id = ANY (known.ids)
     ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run % has no message: message % %', quote_literal(known.run_id), lost.id, lost.why
            USING ERRCODE = 'PQ017', HINT = 'Nothing is left for this run to do: mark it as a success. To do the work once more, publish the message again.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.dispatched_messages(text, text) IS
    'The messages of a run that a dispatcher started, for its tasks; finished ones come from the archive, without a lease. After the run was cleared, messages that wait for another attempt are leased again. Leaves out what another run has finished, what was cancelled, and what was requeued. PQ017: the run has no dispatch, or none of its messages any more, because another has or finished them; PQ016: another transaction is changing its dispatch, or has one of the messages, for more than three seconds.';
