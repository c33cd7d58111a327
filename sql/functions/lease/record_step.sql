CREATE OR REPLACE FUNCTION messages.record_step(lock_token uuid, id bigint, name text, result jsonb, lease_for interval DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    kept jsonb;
BEGIN
    PERFORM messages.check_length('the name of the step', record_step.name, 1, 255, required => true);
    PERFORM messages.check_duration('lease_for', record_step.lease_for, '1 millisecond', '12 hours');
    UPDATE messages.message_rows m
       SET steps = coalesce(m.steps, '[]') || jsonb_build_object(
               'name', record_step.name, 'result', record_step.result, 'at', clock_timestamp(), 'attempt', m.attempts),
           -- The lease never ends sooner than before, so its timer needs no change.
           lock_expires_at = greatest(m.lock_expires_at, clock_timestamp() + coalesce(
               record_step.lease_for, (SELECT q.lease_for FROM messages.queue q WHERE q.queue_name = m.queue_name)))
     WHERE m.id = record_step.id AND m.lock_token = record_step.lock_token AND m.lock_expires_at > clock_timestamp()
    RETURNING m.steps INTO kept;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF kept - -1 @> jsonb_build_array(jsonb_build_object('name', record_step.name)) THEN
        RAISE EXCEPTION 'step % of message % is kept already', quote_literal(record_step.name), record_step.id
            USING ERRCODE = 'PQ004', HINT = 'Give each step of a message a name of its own.';
    ELSIF octet_length((kept -> -1 -> 'result')::text) > 65536 THEN
        RAISE EXCEPTION 'the result of step % has % bytes', quote_literal(record_step.name), octet_length((kept -> -1 -> 'result')::text)
            USING ERRCODE = 'PQ004', HINT = 'Give at most 65536 bytes; store large results elsewhere and say where.';
    ELSIF jsonb_array_length(kept) > 1000 OR messages.json_bytes(kept) > 1048576 THEN
        RAISE EXCEPTION 'message % has % steps of % bytes', record_step.id, jsonb_array_length(kept), messages.json_bytes(kept)
            USING ERRCODE = 'PQ004', HINT = 'Keep at most 1000 steps and 1 MB of a message; publish messages for more work.';
    END IF;
    RETURN kept -> -1 -> 'result';
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('message %s', record_step.id));
END $$;
COMMENT ON FUNCTION messages.record_step(uuid, bigint, text, jsonb, interval) IS
    'Keeps the result of a step of a leased message until the message is finished, makes its lease end no sooner than lease_for from now (by default the lease_for of the queue), and returns the result as it is kept; NULL if the lease was lost, and then nothing is kept. A message that dies keeps its steps, and the one that repeats it continues after them, unless it has another body. PQ004: the message has a step of this name, a result of more than 64 kB, more than 1000 steps or 1 MB in one message, bad name or duration; PQ016: another transaction has the message for more than three seconds.';
