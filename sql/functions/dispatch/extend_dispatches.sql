CREATE OR REPLACE FUNCTION messages.extend_dispatches(dispatch_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    alive messages.dispatch;
BEGIN
    -- No row is waited for: an open transaction that has one would hold up the leases of all other runs until they end.
    FOR alive IN
        SELECT * FROM messages.dispatch d WHERE d.dispatch_id = ANY (extend_dispatches.dispatch_ids) AND d.ended_at IS NULL
           AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')))
         ORDER BY d.dispatch_id
    LOOP
        UPDATE messages.dispatch d SET seen_at = clock_timestamp() WHERE d.ctid = (
            SELECT free.ctid FROM messages.dispatch free WHERE free.dispatch_id = alive.dispatch_id AND free.ended_at IS NULL FOR UPDATE SKIP LOCKED);
        PERFORM messages.extend(alive.lock_token, ARRAY(
            SELECT m.id FROM messages.message_rows m WHERE m.id = ANY (alive.ids) AND m.lock_token = alive.lock_token
               FOR UPDATE SKIP LOCKED), alive.lease_for);
        IF EXISTS (SELECT FROM messages.message_rows m
                    WHERE m.id = ANY (alive.ids) AND m.lock_token = alive.lock_token AND m.lock_expires_at > clock_timestamp()) THEN
            RETURN NEXT alive.dispatch_id;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.extend_dispatches(bigint[]) IS
    'Records that the runs of these dispatches are queued or running, or about to be started, and renews their leases; returns the dispatches that still hold a message. Waits for nobody: a message that another transaction is changing is left to the next call.';
