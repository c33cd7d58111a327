CREATE OR REPLACE FUNCTION messages.pause_rings() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- And ends a pause that a clock which went back made long.
    SELECT messages.store_time('messages.rings_paused_until', CASE WHEN used > 0.5 THEN clock_timestamp() + interval '1 minute' ELSE 'epoch' END)
      FROM pg_notification_queue_usage() AS used
     WHERE used > 0.5 OR messages.stored_time('messages.rings_paused_until') > clock_timestamp() + interval '1 minute'
$$;
COMMENT ON FUNCTION messages.pause_rings() IS 'Lets nobody ring for a minute if the notification queue of the server is more than half full. Looks and the upkeep ask.';
