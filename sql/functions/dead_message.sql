CREATE OR REPLACE FUNCTION messages.dead_message() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE WARNING 'dead message: archive id %, queue %, result %', NEW.id, NEW.queue_name, NEW.result;
    INSERT INTO messages.dead_message (id, archived_at, queue_name, result)
    VALUES (NEW.id, NEW.archived_at, NEW.queue_name, NEW.result);
    -- The setting lives as long as the transaction, and so does the NOTIFY: one ring per transaction and queue.
    IF current_setting('messages.dead_message_rung', true) IS DISTINCT FROM NEW.queue_name
       AND pg_notification_queue_usage() <= 0.5 THEN
        PERFORM set_config('messages.dead_message_rung', NEW.queue_name, true);
        PERFORM pg_notify('dead_message', NEW.id::text);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.dead_message() IS
    'Internal, trigger. Puts a dead message on the work list, warns in the server log and rings dead_message with the archive id.';
