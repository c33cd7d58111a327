CREATE OR REPLACE FUNCTION messages.change(
    queue_name text,
    ids        bigint[],
    priority   integer     DEFAULT NULL,
    delay      interval    DEFAULT NULL,
    visible_at timestamptz DEFAULT NULL,
    message    jsonb       DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    at      timestamptz;
    changed bigint[];
BEGIN
    PERFORM messages.check_queue(change.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(change.ids), 0, 10000);
    IF num_nonnulls(change.priority, change.delay, change.visible_at, change.message) = 0 THEN
        RAISE EXCEPTION 'nothing is to be changed' USING ERRCODE = 'PQ004', HINT = 'Give priority, delay, visible_at or message.';
    END IF;
    PERFORM messages.check_publish(coalesce(change.priority, 4), change.delay, NULL, change.visible_at, NULL);
    at := CASE WHEN num_nonnulls(change.delay, change.visible_at) > 0 THEN greatest(change.visible_at, moment, moment + change.delay) END;
    PERFORM messages.make_lane(change.queue_name, change.priority) WHERE change.priority IS NOT NULL;
    -- In one order, as cancel does. The next statement sees what those did that this one waited for.
    PERFORM FROM messages.message_rows m
      WHERE m.id = ANY (change.ids) AND m.queue_name = change.queue_name COLLATE "default" ORDER BY m.id FOR UPDATE;
    changed := messages.change_waiting(change.queue_name, change.ids, change.priority, at, change.message);
    PERFORM messages.record_audit('change', change.queue_name, jsonb_build_object(
        'ids', change.ids, 'priority', change.priority, 'visible_at', at, 'body_is_new', nullif(change.message IS NOT NULL, false)),
        cardinality(changed)) WHERE cardinality(changed) > 0;
    RETURN QUERY SELECT unnest(changed);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a message of queue %L', change.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.change(text, bigint[], integer, interval, timestamptz, jsonb) IS
    'Changes priority, time or body of messages of a queue while they wait, and returns their ids. A message whose id is not returned is leased or finished, and stays as it was. A message keeps its place in the order, and one that waits behind others of its group still does. The audit records it, without the body. PQ001: unknown queue; PQ004: more than 10000 ids, nothing to change, or a bad priority, delay or visible_at; PQ005: body too large; PQ016: a transaction that took one of these messages stays open for more than three seconds.';
