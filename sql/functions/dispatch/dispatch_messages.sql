CREATE OR REPLACE FUNCTION messages.dispatch_messages(
    queue_name    text,
    dag_id        text,
    max_open      integer  DEFAULT 16,
    batch_size    integer  DEFAULT 1,
    group_by      text     DEFAULT NULL,
    on_failure    text     DEFAULT 'retry',
    lease_for     interval DEFAULT '6 hours',
    dispatched_by text     DEFAULT NULL
) RETURNS SETOF messages.open_dispatch
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    room   integer;
    leased messages.leased_message[];
    batch  record;
    opened messages.open_dispatch;
BEGIN
    PERFORM messages.check_read_committed(), messages.check_queue(dispatch_messages.queue_name, 'consume'),
            messages.check_length('dag_id', dispatch_messages.dag_id, 1, 250, required => true),
            messages.check_duration('lease_for', dispatch_messages.lease_for, '1 millisecond', '12 hours', required => true),
            messages.check_number('max_open', dispatch_messages.max_open, 1, 10000, required => true),
            messages.check_number('batch_size', dispatch_messages.batch_size, 1, 10000, required => true),
            messages.check_choice('group_by', dispatch_messages.group_by, '{topic,reference}'),
            messages.check_choice('on_failure', dispatch_messages.on_failure, '{retry,fail}', required => true);
    -- One dispatcher counts and opens at a time, or two would exceed max_open together.
    PERFORM messages.lock_queue(dispatch_messages.queue_name);
    SELECT dispatch_messages.max_open - count(*) INTO room FROM messages.dispatch d
     WHERE d.queue_name = dispatch_messages.queue_name COLLATE "default" AND d.dag_id = dispatch_messages.dag_id AND d.ended_at IS NULL;
    IF room < 1 THEN
        RETURN;
    END IF;
    leased := ARRAY(
        SELECT l::messages.leased_message FROM messages.lease(
            dispatch_messages.queue_name, least(room::bigint * dispatch_messages.batch_size, 10000)::integer, dispatch_messages.lease_for,
            coalesce(dispatch_messages.dispatched_by, session_user::text COLLATE "default")) l);
    FOR batch IN
        WITH message AS (
            SELECT l.*, CASE dispatch_messages.group_by WHEN 'topic' THEN l.topic WHEN 'reference' THEN l.reference END AS value
              FROM unnest(leased) l),
        placed AS (
            SELECT m.*, (row_number() OVER (PARTITION BY m.value ORDER BY m.priority DESC, m.id) - 1) / dispatch_messages.batch_size AS number
              FROM message m)
        SELECT array_agg(p.id ORDER BY p.priority DESC, p.id) AS ids, (array_agg(p.attempts ORDER BY p.priority DESC, p.id))[1] AS attempt,
               (array_agg(p.lock_token))[1] AS lock_token
          FROM placed p GROUP BY p.value, p.number ORDER BY max(p.priority) DESC, min(p.id)
    LOOP
        IF room < 1 THEN
            -- More groups than runs: the rest comes next time.
            PERFORM messages.release(batch.lock_token, batch.ids, count_attempt => false);
            CONTINUE;
        END IF;
        room := room - 1;
        -- A run that was refused never was, so its id is free, unless a transaction asks for it now; any other of this message and
        -- attempt is a run of its own.
        DELETE FROM messages.dispatch d WHERE d.ctid = (
            SELECT free.ctid FROM messages.dispatch free
             WHERE free.dag_id = dispatch_messages.dag_id AND free.result = 'refused' AND free.queue_name = dispatch_messages.queue_name COLLATE "default"
               AND free.run_id = format('pgqueue__%s__%s__%s', dispatch_messages.queue_name, batch.ids[1], batch.attempt) FOR UPDATE SKIP LOCKED);
        INSERT INTO messages.dispatch (queue_name, dag_id, run_id, on_failure, lease_for, dispatched_by, lock_token, ids)
        VALUES (dispatch_messages.queue_name, dispatch_messages.dag_id,
                concat_ws('__', 'pgqueue', dispatch_messages.queue_name, batch.ids[1], batch.attempt,
                          (SELECT nullif(count(*), 0) FROM messages.dispatch d
                            WHERE d.dag_id = dispatch_messages.dag_id
                              AND starts_with(d.run_id || '__', format('pgqueue__%s__%s__%s__', dispatch_messages.queue_name, batch.ids[1], batch.attempt)))),
                dispatch_messages.on_failure, dispatch_messages.lease_for, dispatch_messages.dispatched_by, batch.lock_token, batch.ids)
        RETURNING dispatch_id, queue_name, dag_id, run_id, ids, opened_at, started_at, seen_at INTO opened;
        -- Whose they are, however the run ends.
        UPDATE messages.message_rows m SET locked_by = concat_ws('/', opened.dag_id, opened.run_id)
         WHERE m.id = ANY (batch.ids) AND m.lock_token = batch.lock_token;
        RETURN NEXT opened;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.dispatch_messages(text, text, integer, integer, text, text, interval, text) IS
    'Leases messages for runs of a DAG, at most batch_size for each, records a dispatch for each run, and returns the dispatches; the caller starts the runs. At most max_open of a queue and DAG are open at once, whoever dispatches. The run is the locked_by of its messages. The lease lasts lease_for from the last time that anybody saw the run alive. With group_by topic or reference, all messages of a run have the same. on_failure says what a failed run does to its messages: retry after the back-off until their last attempt, or fail. PQ001: unknown queue; PQ002: paused; PQ004: bad argument; PQ016: somebody else dispatches from this queue for more than three seconds.';
