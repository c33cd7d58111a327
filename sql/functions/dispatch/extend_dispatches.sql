CREATE OR REPLACE FUNCTION messages.extend_dispatches(dispatch_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    alive messages.dispatch;
BEGIN
    FOR alive IN
        SELECT * FROM messages.dispatch d WHERE d.dispatch_id = ANY (extend_dispatches.dispatch_ids) AND d.ended_at IS NULL
           AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')))
         ORDER BY d.dispatch_id FOR UPDATE
    LOOP
        UPDATE messages.dispatch d SET seen_at = clock_timestamp() WHERE d.dispatch_id = alive.dispatch_id;
        -- Dead messages are not leased: they are marked with the number of their dispatch.
        IF EXISTS (SELECT FROM messages.extend(alive.lock_token, alive.ids, alive.lease_for))
           OR EXISTS (SELECT FROM messages.dead_message d WHERE d.id = ANY (alive.ids) AND d.dispatch_id = alive.dispatch_id) THEN
            RETURN NEXT alive.dispatch_id;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.extend_dispatches(bigint[]) IS
    'Records that the runs of these dispatches are queued or running, or about to be started, and renews their leases; returns the dispatches that still hold a message.';
