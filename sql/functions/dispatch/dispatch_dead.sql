CREATE OR REPLACE FUNCTION messages.dispatch_dead(
    queue_name    text,
    dag_id        text,
    max_open      integer  DEFAULT 16,
    batch_size    integer  DEFAULT 1000,
    results       text[]   DEFAULT NULL,
    max_requeues  integer  DEFAULT NULL,
    retry_after   interval DEFAULT '1 minute',
    dispatched_by text     DEFAULT NULL
) RETURNS SETOF messages.open_dispatch
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    room   integer;
    cause  record;
    number bigint;
    taken  bigint[];
    opened messages.open_dispatch;
BEGIN
    PERFORM messages.check_read_committed(), messages.check_length('dag_id', dispatch_dead.dag_id, 1, 250, required => true),
            messages.check_queue(dispatch_dead.queue_name, 'consume'),
            messages.check_dead_lease(dispatch_dead.queue_name, dispatch_dead.results, dispatch_dead.max_requeues),
            messages.check_duration('retry_after', dispatch_dead.retry_after, '0', '1 day', required => true),
            messages.check_number('max_open', dispatch_dead.max_open, 1, 10000, required => true),
            messages.check_number('batch_size', dispatch_dead.batch_size, 1, 10000, required => true);
    -- One dispatcher counts and opens at a time, or two would exceed max_open together, and give a cause two runs.
    PERFORM messages.lock_queue(dispatch_dead.queue_name);
    SELECT dispatch_dead.max_open - count(*) INTO room FROM messages.dispatch d
     WHERE d.queue_name = dispatch_dead.queue_name COLLATE "default" AND d.dag_id = dispatch_dead.dag_id AND d.ended_at IS NULL;
    FOR cause IN
        SELECT d.fingerprint FROM messages.dead_message d
         WHERE d.queue_name = dispatch_dead.queue_name COLLATE "default" AND d.dispatch_id IS NULL AND d.fingerprint IS NOT NULL
           AND (dispatch_dead.results IS NULL OR d.result = ANY (dispatch_dead.results))
           AND (dispatch_dead.max_requeues IS NULL OR d.requeues < dispatch_dead.max_requeues)
           AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
         GROUP BY d.fingerprint ORDER BY min(d.archived_at)
    LOOP
        EXIT WHEN room < 1;
        -- One run of a cause at a time; after a run that failed the next one waits, each time twice as long, up to a day.
        CONTINUE WHEN EXISTS (
            SELECT FROM messages.dispatch d
             WHERE d.queue_name = dispatch_dead.queue_name COLLATE "default" AND d.dag_id = dispatch_dead.dag_id AND d.fingerprint = cause.fingerprint
               AND d.ended_at IS NULL);
        CONTINUE WHEN (
            SELECT max(d.ended_at) + least('1 day', dispatch_dead.retry_after * 2 ^ least(count(*) - 1, 20)) FROM messages.dispatch d
             WHERE d.queue_name = dispatch_dead.queue_name COLLATE "default" AND d.dag_id = dispatch_dead.dag_id AND d.fingerprint = cause.fingerprint
               AND d.result IN ('failed', 'lost')
               AND d.dispatch_id > (SELECT coalesce(max(s.dispatch_id), 0) FROM messages.dispatch s
                                     WHERE s.queue_name = dispatch_dead.queue_name COLLATE "default" AND s.dag_id = dispatch_dead.dag_id
                                       AND s.fingerprint = cause.fingerprint AND s.result = 'success')) > clock_timestamp();
        number := nextval('messages.dispatch_dispatch_id_seq');
        WITH picked AS MATERIALIZED (
            SELECT d.id FROM messages.dead_message d
             WHERE d.queue_name = dispatch_dead.queue_name COLLATE "default" AND d.fingerprint = cause.fingerprint AND d.dispatch_id IS NULL
               AND (dispatch_dead.results IS NULL OR d.result = ANY (dispatch_dead.results))
               AND (dispatch_dead.max_requeues IS NULL OR d.requeues < dispatch_dead.max_requeues)
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
             ORDER BY d.archived_at, d.id LIMIT dispatch_dead.batch_size FOR UPDATE SKIP LOCKED),
        given AS (
            UPDATE messages.dead_message d SET dispatch_id = number FROM picked p WHERE d.id = p.id RETURNING d.id)
        SELECT array_agg(g.id ORDER BY g.id) INTO taken FROM given g;
        CONTINUE WHEN taken IS NULL;
        INSERT INTO messages.dispatch (dispatch_id, queue_name, dag_id, run_id, fingerprint, on_failure, lease_for, dispatched_by, lock_token, ids)
        OVERRIDING SYSTEM VALUE
        VALUES (number, dispatch_dead.queue_name, dispatch_dead.dag_id,
                format('pgqueue__%s__dead_%s__%s', dispatch_dead.queue_name, cause.fingerprint, number),
                cause.fingerprint, 'retry', '1 minute', dispatch_dead.dispatched_by, gen_random_uuid(), taken)
        RETURNING dispatch_id, queue_name, dag_id, run_id, ids, opened_at, started_at, seen_at, fingerprint INTO opened;
        room := room - 1;
        RETURN NEXT opened;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.dispatch_dead(text, text, integer, integer, text[], integer, interval, text) IS
    'Gives the dead messages of each cause to a run of a DAG, at most batch_size, oldest first, records a dispatch for each run, and returns the dispatches; the caller starts the runs. Leaves out messages that somebody has leased, or that were requeued max_requeues times. A cause has one run at a time. A message has one run; if that fails or is lost, it gets another after retry_after, which doubles each time up to a day. At most max_open of a queue and DAG are open at once. PQ001: unknown queue; PQ004: bad argument; PQ016: somebody else dispatches from this queue for more than three seconds.';
