CREATE OR REPLACE FUNCTION messages.once(consumer text, message_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_length('consumer', once.consumer, 1, 255, required => true);
    IF once.message_id IS NULL THEN
        RAISE EXCEPTION 'message_id is NULL' USING ERRCODE = 'PQ004', HINT = 'Give the id of the message.';
    END IF;
    -- A limited login may name only messages of its own queues, or it could keep another team from its effect. The name of
    -- another queue is not for it either.
    IF messages.session_is_limited() THEN
        PERFORM messages.check_access(
            (SELECT m.queue_name FROM messages.message_rows m WHERE m.id = once.message_id
                AND m.queue_name IN (SELECT messages.granted_queues('consume'))), 'consume');
    END IF;
    INSERT INTO messages.inbox (consumer, message_id) VALUES (once.consumer, once.message_id) ON CONFLICT DO NOTHING;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('message %s of consumer %L', once.message_id, left(once.consumer, 100)), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.once(text, bigint) IS
    'True the first time that it is called for a consumer and a message, else false. Called in the transaction of an effect, it lets the effect happen once, however often the message is delivered. Remembered for 30 days. Of two concurrent calls the second waits for the first. PQ004: bad argument; PQ016: the transaction of the first stayed open for more than three seconds, or waits for the second.';
