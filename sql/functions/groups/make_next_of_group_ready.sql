CREATE OR REPLACE FUNCTION messages.make_next_of_group_ready(queue_name text, group_key text, finished bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    first  bigint;
    next   record;
    alone  boolean := false;
    hash   bigint  := hashtextextended(make_next_of_group_ready.group_key, hashtextextended(make_next_of_group_ready.queue_name, 0));
BEGIN
    -- Whoever holds the row does the rest; should that be rolled back, an upkeep finds a head that is in no queue.
    PERFORM FROM messages.group_head h
      WHERE h.queue_name = make_next_of_group_ready.queue_name COLLATE "C" AND h.group_key = make_next_of_group_ready.group_key COLLATE "C"
        AND h.id IS NOT DISTINCT FROM finished
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    LOOP
        SELECT f.id INTO first FROM messages.group_follower f
         WHERE f.group_hash = hash AND f.queue_name = make_next_of_group_ready.queue_name COLLATE "default" AND f.group_key = make_next_of_group_ready.group_key COLLATE "default" ORDER BY f.id LIMIT 1;
        IF NOT FOUND THEN
            IF alone THEN
                DELETE FROM messages.group_head h
                 WHERE h.queue_name = make_next_of_group_ready.queue_name COLLATE "C" AND h.group_key = make_next_of_group_ready.group_key COLLATE "C";
                RETURN false;
            END IF;
            -- Somebody may be publishing to the group, unseen: do not wait, but leave it to the next sweep. Once nobody is,
            -- look again for what was committed meanwhile; a transaction that cannot see that leaves it to the next sweep, too.
            alone := current_setting('transaction_isolation') LIKE 'read %'
                     AND pg_try_advisory_xact_lock(messages.group_lock_key(make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key));
            EXIT WHEN NOT alone;
            CONTINUE;
        END IF;
        -- It has waited long enough to be the oldest, so it enters where leases look now. Whoever holds the message may be
        -- replacing it.
        UPDATE messages.message m
           SET visible_at = greatest(m.due_at, least(messages.stored_moment(p.low_water), moment)), due_at = NULL
          FROM messages.queue_priority p, messages.queue q
         WHERE m.id = (SELECT w.id FROM messages.message w WHERE w.id = first FOR UPDATE SKIP LOCKED)
           AND p.queue_name = m.queue_name AND p.priority = m.priority AND q.queue_name = m.queue_name
        RETURNING m.id, m.visible_at, p.low_water, q.notify INTO next;
        IF next.id IS NULL THEN
            EXIT WHEN EXISTS (SELECT FROM messages.message m WHERE m.id = first);
        END IF;
        DELETE FROM messages.group_follower f
         WHERE f.group_hash = hash AND f.id = first;
        CONTINUE WHEN next.id IS NULL;                             -- purged just now
        UPDATE messages.group_head h SET id = next.id
         WHERE h.queue_name = make_next_of_group_ready.queue_name COLLATE "C" AND h.group_key = make_next_of_group_ready.group_key COLLATE "C";
        IF next.visible_at < messages.stored_moment(next.low_water) THEN
            PERFORM messages.store_moment(next.low_water, next.visible_at);
        END IF;
        -- The setting lives as long as the transaction, and so does the NOTIFY: one ring per transaction and queue.
        IF next.notify <> 'off' AND NOT messages.notify_queue_is_filling()
           AND current_setting('messages.group_rung', true) IS DISTINCT FROM make_next_of_group_ready.queue_name THEN
            PERFORM set_config('messages.group_rung', make_next_of_group_ready.queue_name, true);
            PERFORM pg_notify('new_message', next.id::text);
        END IF;
        RETURN true;
    END LOOP;
    UPDATE messages.group_head h SET id = NULL
     WHERE h.queue_name = make_next_of_group_ready.queue_name COLLATE "C" AND h.group_key = make_next_of_group_ready.group_key COLLATE "C" AND h.id IS NOT NULL;
    INSERT INTO messages.group_without_head (queue_name, group_key)
    VALUES (make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key);
    RETURN false;
END $$;
COMMENT ON FUNCTION messages.make_next_of_group_ready(text, text, bigint) IS
    'Makes the next message ready in a group whose head was this message (if it is NULL, in a group without a head); true if there was a next message.';
