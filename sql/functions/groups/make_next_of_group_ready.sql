CREATE OR REPLACE FUNCTION messages.make_next_of_group_ready(queue_name text, group_key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    first  record;
    next   record;
BEGIN
    LOOP
        -- Whoever holds the lock may be publishing to the group, and whoever holds the message may be replacing it: do not
        -- wait, but leave it to the next sweep.
        IF NOT pg_try_advisory_xact_lock(messages.group_lock_key(make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key)) THEN
            EXIT;
        END IF;
        SELECT g.id, g.waits INTO first FROM messages.group_member g
         WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key ORDER BY g.place LIMIT 1;
        IF first.waits IS NOT TRUE THEN                            -- the group is empty or has its head
            DELETE FROM messages.group_without_head g
             WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key;
            RETURN false;
        END IF;
        -- It has waited long enough to be the oldest, so it enters where leases look now.
        UPDATE messages.message m
           SET visible_at = greatest(m.due_at, least(messages.stored_moment(p.low_water), moment)), due_at = NULL
          FROM messages.queue_priority p, messages.queue q
         WHERE m.id = (SELECT w.id FROM messages.message w WHERE w.id = first.id FOR UPDATE SKIP LOCKED)
           AND p.queue_name = m.queue_name AND p.priority = m.priority AND q.queue_name = m.queue_name
        RETURNING m.id, m.visible_at, p.low_water, q.notify INTO next;
        IF next.id IS NULL THEN
            EXIT WHEN EXISTS (SELECT FROM messages.message m WHERE m.id = first.id);
            DELETE FROM messages.group_member g WHERE g.id = first.id;    -- purged just now
            CONTINUE;
        END IF;
        UPDATE messages.group_member g SET waits = false WHERE g.id = first.id;
        DELETE FROM messages.group_without_head g
         WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key;
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
    INSERT INTO messages.group_without_head (queue_name, group_key)
    SELECT make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key
     WHERE NOT EXISTS (SELECT FROM messages.group_without_head g
                        WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key);
    RETURN false;
END $$;
COMMENT ON FUNCTION messages.make_next_of_group_ready(text, text) IS
    'Makes the next message of a group ready, unless the group has a head; true if there was a next message.';
