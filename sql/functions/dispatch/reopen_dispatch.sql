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
    -- Its messages are due to it, even in a queue with a max_leased that others have reached. But they count for those.
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
COMMENT ON FUNCTION messages.reopen_dispatch(messages.dispatch) IS
    'Opens the dispatch of a run that was cleared again, if its messages wait for another attempt or are dead, and returns it. Leases them whatever the max_leased of the queue. PQ016: another transaction has one of them for more than three seconds; PQ017: another run has them.';
