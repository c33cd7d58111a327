CREATE OR REPLACE FUNCTION messages.create_queue(
    queue_name      text,
    max_attempts    integer  DEFAULT 15,
    lease_for       interval DEFAULT '5 minutes',
    notify          text     DEFAULT 'always',
    max_body_bytes  integer  DEFAULT 1048576,
    fair_by         text     DEFAULT NULL,
    paused          boolean  DEFAULT false,
    backoff_first   interval DEFAULT '1 second',
    backoff_max     interval DEFAULT '1 hour',
    dedup_window    interval DEFAULT '1 day',
    retention       interval DEFAULT NULL,
    on_dead_head    text     DEFAULT 'block',
    max_leased      integer  DEFAULT NULL,
    max_leased_per_group integer DEFAULT 1,
    rate_limit      integer  DEFAULT NULL,
    rate_period     interval DEFAULT '1 second',
    rate_burst      integer  DEFAULT 1,
    handler_timeout interval DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue_name(create_queue.queue_name);
    INSERT INTO messages.queue (queue_name) VALUES (create_queue.queue_name) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM messages.alter_queue(create_queue.queue_name, create_queue.max_attempts, create_queue.lease_for,
                                 create_queue.notify, create_queue.max_body_bytes, create_queue.fair_by, create_queue.paused,
                                 create_queue.backoff_first, create_queue.backoff_max, create_queue.dedup_window,
                                 create_queue.retention, create_queue.on_dead_head, create_queue.max_leased,
                                 create_queue.max_leased_per_group, create_queue.rate_limit,
                                 create_queue.rate_period, create_queue.rate_burst, create_queue.handler_timeout);
    PERFORM messages.mend_lanes(create_queue.queue_name);
    RETURN true;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('queue %L', create_queue.queue_name));
    WHEN out_of_memory THEN                -- of the table of locks: two sequences are locked until the commit
        RAISE EXCEPTION 'this transaction created more queues than the server has room to lock' USING ERRCODE = 'PQ018',
            HINT = 'Create a thousand at most in one transaction, or raise max_locks_per_transaction.';
END $$;
COMMENT ON FUNCTION messages.create_queue(text, integer, interval, text, integer, text, boolean, interval, interval, interval, interval, text, integer, integer, integer, interval, integer, interval) IS
    'Creates a queue and returns true; returns false and changes nothing if it exists. PQ003: bad name; PQ004: bad policy; PQ018: thousands in one transaction; PQ016: another transaction is creating it for more than three seconds.';
