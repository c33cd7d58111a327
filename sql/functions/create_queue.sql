CREATE OR REPLACE FUNCTION messages.create_queue(
    queue_name     text,
    max_attempts   integer  DEFAULT 5,
    lease_for      interval DEFAULT '5 minutes',
    notify         text     DEFAULT 'always',
    max_body_bytes integer  DEFAULT 1048576,
    paused         boolean  DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF create_queue.queue_name IS NULL OR create_queue.queue_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'queue name % is not valid', coalesce(quote_literal(left(create_queue.queue_name, 100)), 'NULL')
            USING ERRCODE = 'PQ003', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
    PERFORM messages.check_policy(create_queue.max_attempts, create_queue.lease_for, create_queue.notify,
                                  create_queue.max_body_bytes);
    INSERT INTO messages.queue (queue_name, max_attempts, lease_for, notify, max_body_bytes, paused)
    VALUES (create_queue.queue_name, create_queue.max_attempts, create_queue.lease_for, create_queue.notify,
            create_queue.max_body_bytes, create_queue.paused)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM messages.add_band(create_queue.queue_name, 0::smallint);
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.create_queue(text, integer, interval, text, integer, boolean) IS
    'Creates a queue and returns true; returns false and changes nothing if it exists. PQ003: bad name; PQ004: bad policy.';
