CREATE OR REPLACE FUNCTION messages.cancel(queue_name text, ids bigint[], reason text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    ended messages.ended_message[];
BEGIN
    PERFORM messages.check_queue(cancel.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(cancel.ids), 0, 10000);
    -- In one order, as release_messages does. The next statement sees what those did that this one waited for.
    PERFORM FROM messages.message_rows m
      WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default" ORDER BY m.id FOR UPDATE;
    WITH gone AS (
        DELETE FROM messages.message_rows m WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default"
        RETURNING m.*),
    archived AS (
        INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
                                                result, handled_by, details, reference, topic, group_key, headers, message)
        SELECT g.id, g.created_at, g.leased_at, g.requeued_from, g.priority, g.attempts, g.requeues, g.queue_name,
               'cancelled', session_user, left(cancel.reason, 4000), g.reference, g.topic, g.group_key, g.headers, g.message
          FROM gone g
        RETURNING a.id, a.archived_at, a.queue_name, a.result, a.fingerprint, a.requeues, a.group_key, a.headers ? 'awaited' AS awaited)
    SELECT array_agg(ROW(a.*)::messages.ended_message ORDER BY a.id) INTO ended FROM archived a;
    PERFORM messages.after_archive(ended) WHERE ended IS NOT NULL;
    PERFORM messages.record_remedy('cancel', cancel.queue_name, cardinality(ended), jsonb_build_object(
        'ids', cancel.ids, 'reason', left(cancel.reason, 500)));
    RETURN QUERY SELECT e.id FROM unnest(ended) e;
EXCEPTION
    WHEN lock_not_available THEN
        PERFORM messages.raise_in_use(format('a message of queue %L', cancel.queue_name));
    WHEN deadlock_detected THEN
        PERFORM messages.raise_deadlock(format('a message of queue %L', cancel.queue_name));
END $$;
COMMENT ON FUNCTION messages.cancel(text, bigint[], text) IS
    'Archives messages of a queue as cancelled, whether they wait or are leased, and returns the ids; an id that is missing was finished already. Whoever works on one has lost it, and learns it when the lease is extended or the message archived. A cancelled message is not dead: it rings no dead_message, and the next of its group follows. An entry of the audit. PQ001: unknown queue; PQ004: more than 10000 ids; PQ016: a transaction that took one of these messages stays open for more than three seconds.';
