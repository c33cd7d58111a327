CREATE OR REPLACE FUNCTION messages.message_archived() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF NEW.result <> 'success' THEN
        RAISE WARNING 'dead message: archive id %, queue %, result %', NEW.id, NEW.queue_name, NEW.result;
        INSERT INTO messages.dead_message (id, archived_at, queue_name, result, fingerprint, requeues)
        VALUES (NEW.id, NEW.archived_at, NEW.queue_name, NEW.result,
                coalesce(NEW.fingerprint, messages.fingerprint(NEW.result, NEW.details, NEW.failure)), NEW.requeues);
        -- The setting lives as long as the transaction, and so does the NOTIFY: one ring per transaction and queue.
        IF current_setting('messages.dead_message_rung', true) IS DISTINCT FROM NEW.queue_name AND NOT messages.notify_queue_is_filling() THEN
            PERFORM set_config('messages.dead_message_rung', NEW.queue_name, true);
            PERFORM pg_notify('dead_message', NEW.id::text);
        END IF;
    ELSIF NEW.headers ? 'awaited' AND NOT messages.notify_queue_is_filling() THEN
        -- The same text each time, which PostgreSQL sends once per transaction.
        PERFORM pg_notify('message_finished', NEW.queue_name);
    END IF;
    -- A dead head that blocks its group stays the head until it is requeued or dismissed.
    IF NEW.group_key IS NOT NULL AND (NEW.result = 'success' OR EXISTS (
            SELECT FROM messages.queue q WHERE q.queue_name = NEW.queue_name AND q.on_dead_head = 'skip')) THEN
        PERFORM messages.make_next_of_group_ready(NEW.queue_name, NEW.group_key, NEW.id);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_archived() IS
    'Trigger. Puts a dead message on the work list, warns in the server log and rings dead_message with the archive id, or for a success with the header awaited message_finished with the queue; gives the next message of a group its turn.';
