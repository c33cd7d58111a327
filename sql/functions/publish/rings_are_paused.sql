CREATE OR REPLACE FUNCTION messages.rings_are_paused() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN messages.stored_time('messages.rings_paused_until', clock_timestamp() + interval '1 minute') > clock_timestamp();
END $$;
COMMENT ON FUNCTION messages.rings_are_paused() IS
    'True while the notification queue of the server is more than half full: then nobody rings, and consumers poll. A full one would make publishers fail at their commit.';
