CREATE OR REPLACE FUNCTION messages.mend_timers() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    made bigint;
BEGIN
    -- Whatever should have ended a minute ago and has no timer any more.
    INSERT INTO messages.timer (queue_name, at, ids)
    SELECT m.queue_name, clock_timestamp(), array_agg(m.id) FROM messages.message_rows m
     WHERE coalesce(m.lock_expires_at, m.expires_at) < clock_timestamp() - interval '1 minute'
       AND NOT EXISTS (SELECT FROM messages.timer t WHERE t.queue_name = m.queue_name AND t.at < clock_timestamp() + interval '1 minute' AND m.id = ANY (t.ids))
     GROUP BY m.queue_name;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.mend_timers() IS
    'Makes a timer for messages whose lease or expires_at ended a minute ago and that have none, and returns for how many queues. Reads the whole table; needed only after somebody changed it by hand.';
