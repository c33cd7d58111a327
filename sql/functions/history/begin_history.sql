CREATE OR REPLACE FUNCTION messages.begin_history() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    newest   bigint      := coalesce(pg_sequence_last_value('messages.message_id_seq'), 0);
    snapshot pg_snapshot := pg_current_snapshot();
    next_xid bigint      := pg_snapshot_xmax(snapshot)::text::bigint;
BEGIN
    INSERT INTO messages.history_progress AS p (oldest_xid, next_xid, open_xids, last_id, settled_id, settling_id, settling_xid)
    VALUES (pg_snapshot_xmin(snapshot)::text::bigint, next_xid,
            ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(snapshot) AS x), newest, newest, newest, next_xid)
    ON CONFLICT (only_row) DO UPDATE SET
        oldest_xid = excluded.oldest_xid, next_xid = excluded.next_xid, open_xids = excluded.open_xids,
        last_id = excluded.last_id, settled_id = excluded.settled_id, settling_id = excluded.settling_id,
        settling_xid = excluded.settling_xid, caught_up = false;
END $$;
COMMENT ON FUNCTION messages.begin_history() IS
    'Lets the history begin, or continue on another server, with what is archived and published from now on.';
