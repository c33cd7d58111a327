CREATE OR REPLACE FUNCTION messages.alter_queue(
    queue_name     text,
    max_attempts   integer  DEFAULT NULL,
    lease_for      interval DEFAULT NULL,
    notify         text     DEFAULT NULL,
    max_body_bytes integer  DEFAULT NULL,
    paused         boolean  DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_policy(alter_queue.max_attempts, alter_queue.lease_for, alter_queue.notify,
                                  alter_queue.max_body_bytes);
    UPDATE messages.queue q
       SET max_attempts   = coalesce(alter_queue.max_attempts, q.max_attempts),
           lease_for      = coalesce(alter_queue.lease_for, q.lease_for),
           notify         = coalesce(alter_queue.notify, q.notify),
           max_body_bytes = coalesce(alter_queue.max_body_bytes, q.max_body_bytes),
           paused         = coalesce(alter_queue.paused, q.paused)
     WHERE q.queue_name = alter_queue.queue_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(alter_queue.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.alter_queue(text, integer, interval, text, integer, boolean) IS
    'Changes the policy of a queue for waiting messages too; NULL keeps a value. PQ001: unknown queue; PQ004: bad policy.';
