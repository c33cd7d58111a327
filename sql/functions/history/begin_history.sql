CREATE OR REPLACE FUNCTION messages.begin_history() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO messages.history_progress AS p (counted_xid, counted_id, next_xid, next_id)
    SELECT n.xid, n.id, n.xid, n.id
      FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid,
                   coalesce(pg_sequence_last_value('messages.message_id_seq'), 0) AS id) n
    ON CONFLICT (only_row) DO UPDATE SET
        counted_xid = excluded.counted_xid, counted_id = excluded.counted_id, next_xid = excluded.next_xid, next_id = excluded.next_id
$$;
COMMENT ON FUNCTION messages.begin_history() IS
    'Lets the history begin, or continue on another server, with what is archived and published from now on.';
