-- Dispatch: hand messages to DAG runs, which finish them.
--
-- dispatch_messages leases messages and records a dispatch for each run that the caller starts. The caller renews the lease while
-- the run lasts (extend_dispatches), the tasks of the run read its messages (dispatched_messages), and end_dispatch finishes them
-- when the run has ended, with the errors that record_task_failure has recorded.
--
-- A run that was cleared gets its messages again (reopen_dispatch). A dispatch that nobody renews loses its messages when the lease
-- ends.
--
-- Tables: dispatch.

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
            -- There are more groups than runs: the next call takes the rest.
            PERFORM messages.release(batch.lock_token, batch.ids, count_attempt => false);
            CONTINUE;
        END IF;
        room := room - 1;
        -- A refused run was never made, so its run_id can be used again, unless another transaction has its dispatch locked. After any
        -- other run of this message and attempt, the new run_id ends with a number.
        DELETE FROM messages.dispatch d WHERE d.ctid = (
            SELECT free.ctid FROM messages.dispatch free
             WHERE free.dag_id = dispatch_messages.dag_id AND free.result = 'refused' AND free.queue_name = dispatch_messages.queue_name COLLATE "default"
               AND free.run_id = format('pgqueue__%s__%s__%s', dispatch_messages.queue_name, batch.ids[1], batch.attempt) FOR UPDATE SKIP LOCKED);
        INSERT INTO messages.dispatch (queue_name, dag_id, run_id, on_failure, lease_for, dispatched_by, lock_token, ids)
        VALUES (dispatch_messages.queue_name, dispatch_messages.dag_id,
                (SELECT free.run_id
                   FROM format('pgqueue__%s__%s__%s', dispatch_messages.queue_name, batch.ids[1], batch.attempt) AS run (id)
                  CROSS JOIN generate_series(0, (SELECT count(*) FROM messages.dispatch d
                                                  WHERE d.dag_id = dispatch_messages.dag_id AND starts_with(d.run_id, run.id))) AS n
                  CROSS JOIN LATERAL concat_ws('__', run.id, nullif(n, 0)) AS free (run_id)
                  WHERE NOT EXISTS (SELECT FROM messages.dispatch d WHERE d.dag_id = dispatch_messages.dag_id AND d.run_id = free.run_id)
                  ORDER BY n LIMIT 1),
                dispatch_messages.on_failure, dispatch_messages.lease_for, dispatch_messages.dispatched_by, batch.lock_token, batch.ids)
        RETURNING dispatch_id, queue_name, dag_id, run_id, ids, opened_at, started_at, seen_at INTO opened;
        -- The messages belong to the run, however it ends.
        UPDATE messages.message_rows m SET locked_by = concat_ws('/', opened.dag_id, opened.run_id)
         WHERE m.id = ANY (batch.ids) AND m.lock_token = batch.lock_token;
        RETURN NEXT opened;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.dispatch_messages IS
    'Leases messages for runs of a DAG, at most batch_size for each, records a dispatch for each run, and returns the dispatches; the caller starts the runs. At most max_open of a queue and DAG are open at once, whoever dispatches. The run is the locked_by of its messages. The lease lasts lease_for from the last time that anybody saw the run alive. With group_by topic or reference, all messages of a run have the same. on_failure says what a failed run does to its messages: retry after the back-off until their last attempt, or fail. PQ001: unknown queue; PQ002: paused; PQ004: bad argument; PQ016: somebody else dispatches from this queue for more than three seconds.'
    ' [for: consumer]';

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
COMMENT ON FUNCTION messages.open_dispatches IS
    'The dispatches whose run has not ended as far as the queue knows, oldest first; of one queue or DAG, or of all that this login may see. PQ001: unknown queue.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.start_dispatch(dispatch_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE messages.dispatch d SET started_at = clock_timestamp(), seen_at = clock_timestamp()
     WHERE d.ctid = (
        SELECT free.ctid FROM messages.dispatch free
         WHERE free.dispatch_id = start_dispatch.dispatch_id AND free.started_at IS NULL AND free.ended_at IS NULL
           -- A limited login reaches only its own queues.
           AND (NOT messages.session_is_limited() OR free.queue_name IN (SELECT messages.granted_queues('consume')))
           FOR UPDATE SKIP LOCKED);
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION messages.start_dispatch IS
    'Records that the run of a dispatch exists: if it is gone later, somebody deleted it. Returns true if this call recorded it. Records nothing, without waiting, while another transaction is changing the dispatch.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.extend_dispatches(dispatch_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    alive messages.dispatch;
BEGIN
    -- Wait for no row: an open transaction that has locked one would hold up the other runs until their leases end.
    FOR alive IN
        SELECT * FROM messages.dispatch d WHERE d.dispatch_id = ANY (extend_dispatches.dispatch_ids) AND d.ended_at IS NULL
           AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')))
         ORDER BY d.dispatch_id
    LOOP
        UPDATE messages.dispatch d SET seen_at = clock_timestamp() WHERE d.ctid = (
            SELECT free.ctid FROM messages.dispatch free WHERE free.dispatch_id = alive.dispatch_id AND free.ended_at IS NULL FOR UPDATE SKIP LOCKED);
        PERFORM messages.extend(alive.lock_token, ARRAY(
            SELECT m.id FROM messages.message_rows m WHERE m.id = ANY (alive.ids) AND m.lock_token = alive.lock_token
               FOR UPDATE SKIP LOCKED), alive.lease_for);
        IF EXISTS (SELECT FROM messages.message_rows m
                    WHERE m.id = ANY (alive.ids) AND m.lock_token = alive.lock_token AND m.lock_expires_at > clock_timestamp()) THEN
            RETURN NEXT alive.dispatch_id;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.extend_dispatches IS
    'Records that the runs of these dispatches are queued or running, or about to be started, and renews their leases; returns the dispatches that still hold a message. Waits for nobody: a message that another transaction is changing is left to the next call.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.overdue_dispatches(dispatch_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.dispatch_id FROM messages.dispatch d
     WHERE d.dispatch_id = ANY (overdue_dispatches.dispatch_ids) AND d.ended_at IS NULL
       AND coalesce(d.seen_at, d.opened_at) + d.lease_for <= clock_timestamp()
       AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')))
     ORDER BY d.dispatch_id;
END $$;
COMMENT ON FUNCTION messages.overdue_dispatches IS
    'The open dispatches among these that nobody has renewed for as long as their lease lasts: other consumers may have their messages.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.record_task_failure(dag_id text, run_id text, task_id text, failure jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known messages.dispatch;
BEGIN
    PERFORM messages.check_length('task_id', record_task_failure.task_id, 1, 250, required => true),
            messages.check_outcomes(NULL, NULL, record_task_failure.failure);
    known := messages.lock_dispatch(record_task_failure.dag_id, record_task_failure.run_id);
    UPDATE messages.dispatch d
       SET failures = coalesce(d.failures, '{}') || jsonb_build_object(record_task_failure.task_id, record_task_failure.failure)
     WHERE d.dispatch_id = known.dispatch_id AND d.ended_at IS NULL AND record_task_failure.failure IS NOT NULL
       -- The cause needs one error; thousands of tasks of a run may fail.
       AND (SELECT count(*) FROM jsonb_object_keys(d.failures)) < 20;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION messages.record_task_failure IS
    'Records the error with which a task of a run failed for good, an object with error, message and traceback, which end_dispatch gives to the messages of the run. Returns false if the run has no open dispatch, or if twenty of its tasks have failed before. PQ004: a failure that is not an object, or too large; PQ016: another transaction is changing the dispatch.'
    ' [for: consumer]';

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
        -- The run was cleared and ran again, and its tasks did not ask for the messages.
        known := messages.reopen_dispatch(known);
    END IF;
    IF known.ended_at IS NOT NULL THEN
        RETURN 0;
    END IF;
    IF end_dispatch.result = 'failed' THEN
        SELECT known.failures -> t.task_id INTO failure FROM unnest(end_dispatch.failed_tasks) WITH ORDINALITY AS t (task_id, n)
         WHERE known.failures ? t.task_id ORDER BY t.n LIMIT 1;
        -- The cause is the DAG, its tasks and the class of the error, but not the text of the error.
        failure := failure || jsonb_build_object('cause', cause);
    END IF;
    why := left(coalesce(end_dispatch.details, concat_ws(': ', cause, failure ->> 'error', nullif(failure ->> 'message', ''))), 4000);
    IF end_dispatch.result = 'success' THEN
        SELECT count(*) INTO finished FROM messages.archive(known.lock_token, known.ids, 'success', handled_by => run);
        -- Dismiss the messages that died with the failed run: the cleared run has finished their work.
        UPDATE messages.dead_message d SET lock_token = known.lock_token, lock_expires_at = clock_timestamp() + interval '1 minute', locked_by = run
         WHERE d.id = ANY (known.ids) AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp());
        finished := finished + (SELECT count(*) FROM messages.dismiss(known.lock_token, known.ids, format('run %s succeeded', end_dispatch.run_id), run));
    ELSIF end_dispatch.result = 'failed' AND known.on_failure = 'fail' THEN
        SELECT count(*) INTO finished FROM messages.archive(known.lock_token, known.ids, 'failed', why, handled_by => run, failure => failure);
    ELSE
        -- The work of a deleted run is unknown, so its attempt counts.
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
COMMENT ON FUNCTION messages.end_dispatch IS
    'Ends the dispatch of a run and returns how many messages this finished or gave back; 0 if it had ended, NULL if the run has no dispatch. success archives its messages; failed does what on_failure of the dispatch says, and its cause is the DAG, failed_tasks and the class of the error that record_task_failure recorded of the first of them; lost (the run was deleted) delivers them again; refused (the run was never made) does so without an attempt. A run that was cleared and now succeeds finishes its messages that still wait, and dismisses those that are dead. PQ004: bad result; PQ016: another transaction is ending it, or has one of its messages, for more than three seconds.'
    ' [for: consumer]';

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
    -- Lock the dispatch only to lease again: a task may keep its transaction open for as long as it works.
    IF known.ended_at IS NOT NULL AND known.result <> 'success' THEN
        known := messages.lock_dispatch(known.dag_id, known.run_id);
        IF known.ended_at IS NOT NULL AND known.result <> 'success' THEN
            known := messages.reopen_dispatch(known);
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM messages.held_messages(known.lock_token, known.ids, run);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT m.id, CASE WHEN m.locked_by IS NULL THEN 'waits for its next attempt' ELSE format('is leased by %L', m.locked_by) END AS why INTO lost
      FROM messages.message_rows m WHERE m.id = ANY (known.ids)
     UNION ALL
    SELECT a.id, CASE WHEN a.resolution = 'requeued' THEN format('was requeued as message %s', a.requeued_as)
                      ELSE format('was finished by %L', a.handled_by) END
      FROM messages.archive_rows a WHERE a.id = ANY (known.ids)
     ORDER BY id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run % has no message: message % %', quote_literal(known.run_id), lost.id, lost.why
            USING ERRCODE = 'PQ017', HINT = 'Nothing is left for this run to do: mark it as a success. To do the work once more, publish the message again.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.dispatched_messages IS
    'The messages of a run that a dispatcher started, for its tasks; finished ones come from the archive, without a lease. After the run was cleared, messages that wait for another attempt are leased again. Leaves out what another run has finished, what was cancelled, and what was requeued. PQ017: the run has no dispatch, or none of its messages any more, because another has or finished them; PQ016: another transaction is changing its dispatch, or has one of the messages, for more than three seconds.'
    ' [for: consumer]';

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
COMMENT ON FUNCTION messages.lock_dispatch IS
    'Locks the dispatch of a run until the commit, and returns it; returns no row if this login may see none. PQ016: another transaction held it for three seconds, or waits for this one.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.reopen_dispatch(dispatch messages.dispatch) RETURNS messages.dispatch
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    token    uuid := gen_random_uuid();
    other    text;
    leased   boolean;
    reopened messages.dispatch := dispatch;
BEGIN
    SELECT d.run_id INTO other FROM messages.dispatch d
     WHERE d.ids && dispatch.ids AND d.ended_at IS NULL AND d.dispatch_id <> dispatch.dispatch_id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run % has the messages of run % now', quote_literal(other), quote_literal(dispatch.run_id)
            USING ERRCODE = 'PQ017', HINT = 'Leave the work to that run: it is their next attempt.';
    END IF;
    -- The run gets its messages even if others have reached the max_leased of the queue. But its leases count for the others.
    PERFORM messages.leases_left(q.queue_name, q.max_leased) FROM messages.queue q
      WHERE q.queue_name = dispatch.queue_name COLLATE "default" AND q.max_leased IS NOT NULL;
    UPDATE messages.message_rows m
       SET lock_token = token, lock_expires_at = clock_timestamp() + dispatch.lease_for, leased_at = clock_timestamp(),
           locked_by = concat_ws('/', dispatch.dag_id, dispatch.run_id), attempts = least(m.attempts + 1, 32767)
     WHERE m.id = ANY (dispatch.ids) AND m.lock_expires_at IS NULL;
    leased := FOUND;
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT m.queue_name, m.lock_expires_at, token, array_agg(m.id) FROM messages.message_rows m
     WHERE m.id = ANY (dispatch.ids) AND m.lock_token = token GROUP BY m.queue_name, m.lock_expires_at;
    IF leased OR EXISTS (SELECT FROM messages.dead_message d WHERE d.id = ANY (dispatch.ids)) THEN
        UPDATE messages.dispatch d SET lock_token = token, ended_at = NULL, result = NULL, details = NULL, failures = NULL, seen_at = clock_timestamp(),
               started_at = coalesce(d.started_at, clock_timestamp())
         WHERE d.dispatch_id = dispatch.dispatch_id RETURNING * INTO reopened;
    END IF;
    RETURN reopened;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a message of run %L', dispatch.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.reopen_dispatch IS
    'Opens again the dispatch of a run that was cleared, if its messages wait for another attempt or are dead, and returns it. Leases the waiting messages whatever the max_leased of the queue. PQ016: another transaction has one of them for more than three seconds; PQ017: another run has them.'
    ' [internal]';
