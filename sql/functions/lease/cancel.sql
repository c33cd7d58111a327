CREATE OR REPLACE FUNCTION messages.cancel(queue_name text, ids bigint[], reason text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    token CONSTANT uuid := gen_random_uuid();
    done  bigint[];
BEGIN
    PERFORM messages.check_queue(cancel.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(cancel.ids), 0, 10000);
    -- Publishers lock the dedup keys first, in this order, and then the messages.
    PERFORM FROM messages.dedup d WHERE d.queue_name = cancel.queue_name COLLATE "default" AND d.id = ANY (cancel.ids)
      ORDER BY d.dedup_key COLLATE "C" FOR UPDATE;
    -- In one order, as release_messages does. The next statement sees what those did that this one waited for.
    PERFORM FROM messages.message_rows m
      WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default" ORDER BY m.id FOR UPDATE;
    UPDATE messages.message_rows m SET lock_token = token, lock_expires_at = 'infinity'
     WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default";
    done := ARRAY(SELECT a.id FROM messages.archive(token, cancel.ids, 'cancelled', cancel.reason, session_user) AS a (id) ORDER BY a.id);
    DELETE FROM messages.dedup d WHERE d.queue_name = cancel.queue_name COLLATE "default" AND d.id = ANY (done);
    PERFORM messages.record_audit('cancel', cancel.queue_name, jsonb_build_object(
        'ids', cancel.ids, 'reason', left(cancel.reason, 500)), cardinality(done)) WHERE cardinality(done) > 0;
    RETURN QUERY SELECT unnest(done);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a message of queue %L', cancel.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.cancel(text, bigint[], text) IS
    'Archives messages of a queue as cancelled, whether they wait or are leased, and returns the ids; an id that is missing was finished already. Whoever works on one has lost it, and learns it when the lease is extended or the message archived. A cancelled message is not dead: it rings no dead_message, and the next of its group follows. Its dedup key can be used again. An entry of the audit. PQ001: unknown queue; PQ004: more than 10000 ids; PQ016: a transaction that took one of these messages, or publishes under its dedup key, stays open for more than three seconds.';
