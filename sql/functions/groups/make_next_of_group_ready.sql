CREATE OR REPLACE FUNCTION messages.make_next_of_group_ready(queue_name text, group_key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    next   record;
BEGIN
    -- Whoever holds the lock may be publishing to the group: do not wait, but leave it to the next sweep.
    IF NOT pg_try_advisory_xact_lock(messages.group_lock_key(make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key)) THEN
        INSERT INTO messages.group_without_head (queue_name, group_key) VALUES (make_next_of_group_ready.queue_name, make_next_of_group_ready.group_key)
        ON CONFLICT DO NOTHING;
        RETURN false;
    END IF;
    DELETE FROM messages.group_without_head g WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key;
    UPDATE messages.group_member g SET waits = false
     WHERE g.id = (SELECT m.id FROM messages.group_member m
                    WHERE m.queue_name = make_next_of_group_ready.queue_name AND m.group_key = make_next_of_group_ready.group_key ORDER BY m.place LIMIT 1)
       AND g.waits;
    IF NOT FOUND THEN                                              -- the group is empty or has its head
        RETURN false;
    END IF;
    -- It has waited long enough to be the oldest, so it enters where leases look now.
    UPDATE messages.message m
       SET visible_at = greatest(m.due_at, least(messages.stored_moment(p.low_water), moment)), due_at = NULL
      FROM messages.group_member g, messages.queue_priority p, messages.queue q
     WHERE g.queue_name = make_next_of_group_ready.queue_name AND g.group_key = make_next_of_group_ready.group_key AND NOT g.waits AND m.id = g.id
       AND p.queue_name = m.queue_name AND p.priority = m.priority AND q.queue_name = m.queue_name
    RETURNING m.id, m.visible_at, p.low_water, q.notify INTO next;
    IF next.visible_at < messages.stored_moment(next.low_water) THEN
        PERFORM messages.store_moment(next.low_water, next.visible_at);
    END IF;
    -- The setting lives as long as the transaction, and so does the NOTIFY: one ring per transaction and queue.
    IF next.visible_at <= moment AND next.notify <> 'off' AND NOT messages.notify_queue_is_filling()
       AND current_setting('messages.promotion_rung', true) IS DISTINCT FROM make_next_of_group_ready.queue_name THEN
        PERFORM set_config('messages.promotion_rung', make_next_of_group_ready.queue_name, true);
        PERFORM pg_notify('new_message', next.id::text);
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.make_next_of_group_ready(text, text) IS
    'Makes the next message of a group ready, unless the group has a head; true if there was a next message.';
