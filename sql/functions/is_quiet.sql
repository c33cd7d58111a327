CREATE OR REPLACE FUNCTION messages.is_quiet() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    quiet timestamptz := 'epoch'::timestamptz + pg_sequence_last_value('messages.quiet_until') * interval '1 microsecond';
BEGIN
    IF quiet > clock_timestamp() THEN
        RETURN true;
    END IF;
    -- To ask how full the queue is takes two locks of the whole server, so only now and then.
    IF random() < 0.01 AND pg_notification_queue_usage() > 0.5 THEN
        PERFORM messages.set_mark('messages.quiet_until', clock_timestamp() + interval '1 minute');
        RETURN true;
    END IF;
    RETURN false;
END $$;
COMMENT ON FUNCTION messages.is_quiet() IS
    'Internal. True while the notification queue of the server is more than half full: then nobody rings, and consumers poll.';
