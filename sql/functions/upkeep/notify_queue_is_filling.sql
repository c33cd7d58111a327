CREATE OR REPLACE FUNCTION messages.notify_queue_is_filling() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF messages.stored_moment('messages.rings_paused_until', clock_timestamp() + interval '1 minute') > clock_timestamp() THEN
        RETURN true;
    END IF;
    IF pg_notification_queue_usage() > 0.5 THEN
        PERFORM messages.store_moment('messages.rings_paused_until', clock_timestamp() + interval '1 minute');
        RETURN true;
    END IF;
    RETURN false;
END $$;
COMMENT ON FUNCTION messages.notify_queue_is_filling() IS
    'True while the notification queue of the server is more than half full: then nobody rings, and consumers poll.';
