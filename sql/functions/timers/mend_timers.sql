CREATE OR REPLACE FUNCTION messages.mend_timers() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made bigint;
BEGIN
    -- A timer too many finds nothing when its time comes.
    DELETE FROM messages.timer;
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT m.queue_name, greatest(m.due_at, clock_timestamp()), '{}'::bigint[], m.group_key
      FROM messages.message_rows m WHERE m.visible_at = 'infinity';
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT m.queue_name, due.at, due.lock_token, array_agg(m.id)
      FROM messages.message_rows m CROSS JOIN LATERAL (
        VALUES (m.lock_expires_at, m.lock_token), (m.expires_at, NULL),
               (CASE WHEN m.due_at IS NOT NULL THEN nullif(m.visible_at, 'infinity') END, NULL)) due (at, lock_token)
     WHERE due.at IS NOT NULL GROUP BY 1, 2, 3;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.mend_timers() IS
    'Makes the timers of all leases, delays, groups and expires_at anew, and returns how many. Reads the whole table; needed only after somebody changed it by hand.';
