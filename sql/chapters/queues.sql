-- Queues: their policy and their end.
--
-- A queue is a row with a policy. create_queue makes the row and its lanes, alter_queue checks and changes the policy, and drop_queue
-- deletes the queue with its messages, once no transaction is changing one of them.
--
-- check_queue raises an error for a queue that does not exist, or that this login does not reach.
--
-- Tables: queue, dropped_queue.

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
    PERFORM messages.repair_lanes(create_queue.queue_name);
    RETURN true;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('queue %L', create_queue.queue_name));
    WHEN out_of_memory THEN                -- of the table of locks: two sequences are locked until the commit
        RAISE EXCEPTION 'this transaction created more queues than the server has room to lock' USING ERRCODE = 'PQ018',
            HINT = 'Create a thousand at most in one transaction, or raise max_locks_per_transaction.';
END $$;
COMMENT ON FUNCTION messages.create_queue IS
    'Creates a queue and returns true; returns false and changes nothing if it exists. PQ003: bad name; PQ004: bad policy; PQ018: thousands in one transaction; PQ016: another transaction is creating it for more than three seconds.'
    ' [for: admin]';

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
        IF num_nonnulls(alter_queue.on_dead_head, alter_queue.max_leased_per_group) > 0 THEN     -- in the order of drop_queue
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
    IF after.max_leased_per_group < before.max_leased_per_group OR after.on_dead_head = 'block' AND before.on_dead_head = 'skip' THEN
        -- What nobody has leased waits in its group again, if it is at a place that the group no longer has, or a dead message blocks it.
        PERFORM messages.join_groups(after.queue_name, ARRAY(
            SELECT m.id FROM messages.message_rows m
             WHERE m.queue_name = after.queue_name AND m.place IS NOT NULL AND m.lock_expires_at IS NULL
               AND (m.place > after.max_leased_per_group
                    OR after.on_dead_head = 'block'
                       AND EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = m.queue_name AND d.group_key = m.group_key))
               FOR UPDATE SKIP LOCKED));
    END IF;
    IF alter_queue.on_dead_head = 'skip' AND before.on_dead_head = 'block' OR after.max_leased_per_group <> before.max_leased_per_group THEN
        entered := messages.fill_groups(alter_queue.queue_name);
        IF entered <> '{}' THEN
            PERFORM messages.notify_for(alter_queue.queue_name, 0);
        END IF;
    END IF;
    IF NOT EXISTS (SELECT FROM messages.lane l WHERE l.queue_name = alter_queue.queue_name COLLATE "default") THEN
        PERFORM messages.record_audit('create_queue', alter_queue.queue_name, given, NULL);
    ELSIF after IS DISTINCT FROM before THEN
        PERFORM messages.record_audit(CASE given WHEN '{"paused": true}' THEN 'pause_queue' WHEN '{"paused": false}' THEN 'resume_queue'
                                                 ELSE 'alter_queue' END, alter_queue.queue_name, given, NULL);
    END IF;
    IF alter_queue.rate_limit > 0 THEN
        BEGIN
            PERFORM messages.repair_lanes(alter_queue.queue_name);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN        -- maintenance makes the mark of a lane
            PERFORM messages.raise_in_use(format('queue %L', alter_queue.queue_name));
        END;
    END IF;
END $$;
COMMENT ON FUNCTION messages.alter_queue IS
    'Changes the policy of a queue, even for the messages already in it; NULL keeps a value; 0 lifts max_leased, rate_limit, retention and handler_timeout, and an empty fair_by ends the turns of keys. What is leased in a transaction that is still open does not count towards a first max_leased. PQ001: unknown queue; PQ004: bad policy; PQ016: a transaction that changes the queue, or leases from one with a max_leased, stayed open for more than three seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.pause_queue(queue_name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT messages.alter_queue(pause_queue.queue_name, paused => true) $$;
COMMENT ON FUNCTION messages.pause_queue IS
    'Stops leasing from a queue; publishing continues, and leased messages can still be finished. PQ001: unknown queue; PQ016: a transaction that changes the queue, dispatches from it, or leases from one with a max_leased, stayed open for more than three seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.resume_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.alter_queue(resume_queue.queue_name, paused => false);
    PERFORM messages.notify_waiting(q.queue_name, 1) FROM messages.queue q
      WHERE q.queue_name = resume_queue.queue_name COLLATE "default" AND q.notify <> 'off';
END $$;
COMMENT ON FUNCTION messages.resume_queue IS 'Ends a pause, and notifies the consumers. PQ001: unknown queue; PQ016: as in pause_queue.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.purge_queue(queue_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    gone  bigint[];
BEGIN
    PERFORM messages.check_queue(purge_queue.queue_name, 'consume');
    WHILE clock_timestamp() < began + interval '10 s' LOOP
        BEGIN
            -- A locked message is being leased right now: leave it alone.
            gone := ARRAY(
                SELECT m.id FROM messages.message_rows m
                 WHERE m.queue_name = purge_queue.queue_name COLLATE "default" AND coalesce(m.lock_expires_at <= clock_timestamp(), true)
                   FOR UPDATE SKIP LOCKED);
            -- Publishers lock the dedup keys first and then the messages: give way to them.
            PERFORM FROM messages.dedup d WHERE d.queue_name = purge_queue.queue_name COLLATE "default" AND d.id = ANY (gone) FOR UPDATE NOWAIT;
            DELETE FROM messages.message_rows m WHERE m.id = ANY (gone);
            DELETE FROM messages.dedup d WHERE d.queue_name = purge_queue.queue_name COLLATE "default" AND d.id = ANY (gone);
            PERFORM messages.fill_groups(purge_queue.queue_name);
            PERFORM messages.record_audit('purge_queue', purge_queue.queue_name, '{}', cardinality(gone));
            RETURN cardinality(gone);
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(random() / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(format('queue %L', purge_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.purge_queue IS
    'Deletes the messages of a queue that are not leased, delayed ones too, without archiving them, and returns how many. Their dedup keys can be used again. PQ001: unknown queue; PQ016: a transaction that publishes under one of them stayed open for ten seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.drop_queue(queue_name text, force boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    gone  bigint;
BEGIN
    PERFORM messages.check_read_committed();
    WHILE clock_timestamp() < began + interval '30 s' LOOP
        BEGIN
            -- Publishers read the queue without a lock: keep all of them out while this runs.
            PERFORM messages.lock_briefly('messages.message_rows', 'EXCLUSIVE');
            gone := messages.delete_queue(drop_queue.queue_name, coalesce(drop_queue.force, false));
            PERFORM messages.record_audit('drop_queue', drop_queue.queue_name, jsonb_build_object('force', drop_queue.force), gone);
            RETURN gone;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            -- A session that waits behind this lock may hold rows that go with the queue: give way, or both wait forever.
            PERFORM pg_sleep(random() / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(format('queue %L', drop_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.drop_queue IS
    'Removes a queue with its bindings and returns how many unfinished messages went with it; the archive keeps the finished ones for as long as the retention of the queue says. Tries for half a minute to find a time at which no transaction is changing a message. PQ001: unknown queue; PQ004: an isolation level other than read committed; PQ010: not empty and not forced; PQ016: a transaction that changed a message stayed open.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.delete_queue(queue_name text, force boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    deleted  bigint;
    relation text;
BEGIN
    PERFORM FROM messages.queue q WHERE q.queue_name = delete_queue.queue_name COLLATE "default" FOR UPDATE NOWAIT;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(delete_queue.queue_name);
    END IF;
    IF NOT delete_queue.force AND EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = delete_queue.queue_name COLLATE "default") THEN
        RAISE EXCEPTION 'queue % is not empty', quote_literal(delete_queue.queue_name) USING ERRCODE = 'PQ010',
            HINT = format('Finish its messages, or delete them with it: SELECT messages.drop_queue(%L, force => true)', delete_queue.queue_name);
    END IF;
    -- Take all locks or none, without waiting. Who has taken a timer may need the messages only now.
    FOREACH relation IN ARRAY '{timer,dead_message,dispatch,dedup,topic_binding,lane,queue_grant}'::text[] LOOP
        EXECUTE format('SELECT FROM messages.%I WHERE queue_name = $1 FOR UPDATE NOWAIT', relation) USING delete_queue.queue_name;
    END LOOP;
    DELETE FROM messages.message_rows m WHERE m.queue_name = delete_queue.queue_name COLLATE "default";
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- The rows of the other tables refer to the queue, and go with its row.
    FOREACH relation IN ARRAY '{timer,dead_message,dispatch,dedup}'::text[] LOOP
        EXECUTE format('DELETE FROM messages.%I WHERE queue_name = $1', relation) USING delete_queue.queue_name;
    END LOOP;
    -- A session that read the queue a short time ago still reads and sets its marks.
    INSERT INTO messages.unused_sequence (sequence)
    SELECT l.mark FROM messages.lane l WHERE l.queue_name = delete_queue.queue_name COLLATE "default" AND l.mark IS NOT NULL
    UNION ALL
    SELECT own.sequence FROM messages.queue q CROSS JOIN unnest(ARRAY[q.scan_due, q.rate_mark]) AS own (sequence)
     WHERE q.queue_name = delete_queue.queue_name COLLATE "default" AND own.sequence IS NOT NULL;
    -- The archive of the queue stays for as long as its retention promised.
    DELETE FROM messages.dropped_queue d WHERE d.queue_name = delete_queue.queue_name COLLATE "default";
    INSERT INTO messages.dropped_queue (queue_name, retention)
    SELECT r.queue_name, r.retention FROM messages.archive_retention r WHERE r.queue_name = delete_queue.queue_name COLLATE "default";
    DELETE FROM messages.queue q WHERE q.queue_name = delete_queue.queue_name COLLATE "default";
    RETURN deleted;
END $$;
COMMENT ON FUNCTION messages.delete_queue IS
    'Does what drop_queue does, once nobody else can change a message. 55P03: another transaction is changing what goes with the queue.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.scan(queue_names text[], count_up_to integer DEFAULT 1000)
RETURNS TABLE (queue_name text, ready bigint, oldest_age interval, next_in interval, topics text[], oldest_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.scan_queue(q.queue_name) FROM messages.queue q
      WHERE q.queue_name = ANY (scan.queue_names)
        AND ((SELECT r.everything FROM messages.session_reach r)
             OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r));
    RETURN QUERY SELECT * FROM messages.ready_queues(coalesce(scan.queue_names, '{}'), scan.count_up_to);
END $$;
COMMENT ON FUNCTION messages.scan IS
    'Ends what is due in these queues, scans a queue if a scan is due, and returns what ready_queues() returns then. Waiting consumers call it, because nobody else may be there to do it. Unknown names are left out, and so is what this login may not observe. One call serves any number of waiting consumers. PQ004: a negative number.'
    ' [for: consumer, observer, maintenance, pipeline]';

CREATE OR REPLACE FUNCTION messages.lease_policy(queue_name text)
RETURNS TABLE (lease_for interval, handler_timeout interval, counts_leases boolean, limits_rate boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(lease_policy.queue_name, 'consume');
    RETURN QUERY SELECT q.lease_for, q.handler_timeout, q.max_leased IS NOT NULL, q.rate_limit IS NOT NULL
      FROM messages.queue q WHERE q.queue_name = lease_policy.queue_name COLLATE "default";
END $$;
COMMENT ON FUNCTION messages.lease_policy IS
    'How long a lease of the queue lasts, and how long a handler may take for a message (NULL forever), unless the consumer says otherwise; and whether it has a max_leased, so that leases wait for one another, and a rate. PQ001: unknown queue.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.next_ids(queue_name text, max_messages integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(next_ids.queue_name, 'observe');
    PERFORM messages.check_number('max_messages', next_ids.max_messages, 1, 2147483647, required => true);
    RETURN QUERY
    SELECT m.id FROM messages.message_rows m WHERE m.queue_name = next_ids.queue_name COLLATE "default"
     ORDER BY m.priority DESC, m.visible_at, m.id LIMIT next_ids.max_messages;
END $$;
COMMENT ON FUNCTION messages.next_ids IS
    'The first unfinished messages of a queue in the order in which they will be leased, also those that are leased or delayed. A view that hides rows cannot use the order of an index, and would read the whole queue. PQ001: unknown queue; PQ004: no max_messages, or less than 1.'
    ' [for: observer]';

CREATE OR REPLACE FUNCTION messages.check_queue(queue_name text, privilege text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_access(check_queue.queue_name, check_queue.privilege);
    IF NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = check_queue.queue_name COLLATE "default") THEN
        PERFORM messages.raise_unknown_queue(check_queue.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_queue IS
    'Raises 42501 if this login is limited and the queue was not granted to it, PQ001 if there is no such queue.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_queue_name(queue_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF queue_name IS NULL OR queue_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'queue name % is not valid', coalesce(quote_literal(left(queue_name, 100)), 'NULL')
            USING ERRCODE = 'PQ003', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_queue_name IS 'Raises PQ003 for a name that no queue can have.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.raise_unknown_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'queue % does not exist', coalesce(quote_literal(left(queue_name, 100)), 'NULL')
        USING ERRCODE = 'PQ001',
              HINT = CASE WHEN queue_name IS NULL THEN 'Create it: SELECT messages.create_queue(''name'')'
                          WHEN queue_name ~ '^[a-z][a-z0-9_]{0,47}$' THEN format('Create it: SELECT messages.create_queue(%L)', queue_name)
                          ELSE 'No queue can have this name: use a lower-case letter, then letters, digits and underscores; at most 48 characters.' END;
END $$;
COMMENT ON FUNCTION messages.raise_unknown_queue IS 'Raises PQ001 with the queue and the fix.'
    ' [internal]';
