CREATE OR REPLACE FUNCTION messages.alter_queue(
    queue_name      text,
    max_attempts    integer  DEFAULT NULL,
    lease_for       interval DEFAULT NULL,
    notify          text     DEFAULT NULL,
    max_body_bytes  integer  DEFAULT NULL,
    fair_by         text     DEFAULT NULL,
    paused          boolean  DEFAULT NULL,
    backoff_first   interval DEFAULT NULL,
    backoff_max     interval DEFAULT NULL,
    dedup_window    interval DEFAULT NULL,
    retention       interval DEFAULT NULL,
    on_dead_head    text     DEFAULT NULL,
    max_leased      integer  DEFAULT NULL,
    max_leased_per_group integer DEFAULT NULL,
    rate_limit      integer  DEFAULT NULL,
    rate_period     interval DEFAULT NULL,
    rate_burst      integer  DEFAULT NULL,
    handler_timeout interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    before  messages.queue;
    after   messages.queue;
    entered bigint[];
    given   CONSTANT jsonb := jsonb_strip_nulls(jsonb_build_object(
        'max_attempts', alter_queue.max_attempts, 'lease_for', alter_queue.lease_for, 'notify', alter_queue.notify,
        'max_body_bytes', alter_queue.max_body_bytes, 'fair_by', alter_queue.fair_by,
        'paused', alter_queue.paused, 'backoff_first', alter_queue.backoff_first,
        'backoff_max', alter_queue.backoff_max, 'dedup_window', alter_queue.dedup_window, 'retention', alter_queue.retention,
        'on_dead_head', alter_queue.on_dead_head, 'max_leased', alter_queue.max_leased,
        'max_leased_per_group', alter_queue.max_leased_per_group, 'rate_limit', alter_queue.rate_limit,
        'rate_period', alter_queue.rate_period, 'rate_burst', alter_queue.rate_burst,
        'handler_timeout', alter_queue.handler_timeout));
BEGIN
    PERFORM messages.check_number('max_attempts', alter_queue.max_attempts, 1, 1000),
            messages.check_duration('lease_for', alter_queue.lease_for, '1 millisecond', '12 hours'),
            messages.check_choice('notify', alter_queue.notify, '{always,gated,off}'),
            messages.check_number('max_body_bytes', alter_queue.max_body_bytes, 1, 268435455),
            messages.check_duration('backoff_first', alter_queue.backoff_first, '0', '1 day'),
            messages.check_duration('backoff_max', alter_queue.backoff_max, '0', '30 days'),
            messages.check_duration('dedup_window', alter_queue.dedup_window, '1 second', '366 days'),
            messages.check_duration('retention', alter_queue.retention, '0', '100 years'),
            messages.check_choice('on_dead_head', alter_queue.on_dead_head, '{block,skip}'),
            messages.check_number('max_leased', alter_queue.max_leased, 0, 1000000),
            messages.check_number('max_leased_per_group', alter_queue.max_leased_per_group, 1, 10000),
            messages.check_number('rate_limit', alter_queue.rate_limit, 0, 1000000),
            messages.check_duration('rate_period', alter_queue.rate_period, '1 millisecond', '31 days'),
            messages.check_number('rate_burst', alter_queue.rate_burst, 1, 10000),
            messages.check_duration('handler_timeout', alter_queue.handler_timeout, '0', '30 days');
    IF alter_queue.fair_by NOT IN ('group', 'topic', '') THEN
        RAISE EXCEPTION 'fair_by is %', quote_literal(left(alter_queue.fair_by, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give group or topic, or an empty text for none.';
    END IF;
    BEGIN
        IF alter_queue.on_dead_head = 'skip' OR alter_queue.max_leased_per_group > 1 THEN     -- in the order of drop_queue
            LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;
        END IF;
        SELECT * INTO before FROM messages.queue q WHERE q.queue_name = alter_queue.queue_name COLLATE "default" FOR NO KEY UPDATE;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('queue %L', alter_queue.queue_name));
    END;
    IF before.queue_name IS NULL THEN
        PERFORM messages.raise_unknown_queue(alter_queue.queue_name);
    END IF;
    UPDATE messages.queue q
       SET max_attempts    = coalesce(alter_queue.max_attempts, q.max_attempts),
           lease_for       = coalesce(alter_queue.lease_for, q.lease_for),
           notify          = coalesce(alter_queue.notify, q.notify),
           max_body_bytes  = coalesce(alter_queue.max_body_bytes, q.max_body_bytes),
           fair_by         = nullif(coalesce(alter_queue.fair_by, q.fair_by), ''),
           paused          = coalesce(alter_queue.paused, q.paused),
           backoff_first   = coalesce(alter_queue.backoff_first, q.backoff_first),
           backoff_max     = coalesce(alter_queue.backoff_max, q.backoff_max),
           dedup_window    = coalesce(alter_queue.dedup_window, q.dedup_window),
           retention       = nullif(coalesce(alter_queue.retention, q.retention), '0'),
           on_dead_head    = coalesce(alter_queue.on_dead_head, q.on_dead_head),
           max_leased      = nullif(coalesce(alter_queue.max_leased, q.max_leased), 0),
           max_leased_per_group = coalesce(alter_queue.max_leased_per_group, q.max_leased_per_group),
           rate_limit      = nullif(coalesce(alter_queue.rate_limit, q.rate_limit), 0),
           rate_period     = coalesce(alter_queue.rate_period, q.rate_period),
           rate_burst      = coalesce(alter_queue.rate_burst, q.rate_burst),
           handler_timeout = nullif(coalesce(alter_queue.handler_timeout, q.handler_timeout), '0')
     WHERE q.queue_name = alter_queue.queue_name COLLATE "default"
    RETURNING * INTO after;
    IF alter_queue.on_dead_head = 'skip' AND before.on_dead_head = 'block' OR after.max_leased_per_group > before.max_leased_per_group THEN
        entered := messages.fill_groups(alter_queue.queue_name);
        IF entered <> '{}' THEN
            PERFORM messages.ring_for(alter_queue.queue_name, 0);
        END IF;
    END IF;
    IF NOT EXISTS (SELECT FROM messages.lane l WHERE l.queue_name = alter_queue.queue_name COLLATE "default") THEN
        PERFORM messages.record_audit('create_queue', alter_queue.queue_name, given, NULL);
    ELSIF after IS DISTINCT FROM before THEN
        PERFORM messages.record_audit(CASE given WHEN '{"paused": true}' THEN 'pause_queue' WHEN '{"paused": false}' THEN 'resume_queue'
                                                 ELSE 'alter_queue' END, alter_queue.queue_name, given, NULL);
    END IF;
    PERFORM messages.mend_lanes(alter_queue.queue_name) WHERE alter_queue.rate_limit > 0;
END $$;
COMMENT ON FUNCTION messages.alter_queue(text, integer, interval, text, integer, text, boolean, interval, interval, interval, interval, text, integer, integer, integer, interval, integer, interval) IS
    'Changes the policy of a queue, even for the messages already in it; NULL keeps a value; 0 lifts max_leased, rate_limit, retention and handler_timeout, and an empty fair_by ends the turns of keys. What is leased in a transaction that is still open does not count towards a first max_leased. PQ001: unknown queue; PQ004: bad policy; PQ016: a transaction that changes the queue, or leases from one with a max_leased, stayed open for more than three seconds.';
