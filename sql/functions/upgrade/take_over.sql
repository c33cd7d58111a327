CREATE OR REPLACE FUNCTION messages.take_over() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    horizon bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    newest  bigint;
    moved   integer := 0;
    made    integer := 0;
    renamed bigint := 0;
    counter record;
BEGIN
    PERFORM messages.lock_row('messages.upkeep_run');
    FOR counter IN
        SELECT v.sequence, greatest(v.used, 1) AS used FROM (VALUES
            ('messages.message_id_seq'::regclass, (SELECT greatest(max(m.id), (SELECT max(a.id) FROM messages.archive_rows a)) FROM messages.message_rows m)),
            (pg_get_serial_sequence('messages.publish_stage', 'number')::regclass, (SELECT max(s.number) FROM messages.publish_stage s)),
            ('messages.mark_number', (SELECT max(substring(c.relname, '[0-9]+$')::bigint) FROM pg_class c
                WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^mark_[0-9]+$'))
        ) AS v (sequence, used) WHERE v.used > coalesce(pg_sequence_last_value(v.sequence), 0)
    LOOP
        PERFORM setval(counter.sequence, counter.used);
        moved := moved + 1;
    END LOOP;
    -- Only what is missing is made. Marks that came with the copy are corrected by the next look, and a look is due in a minute at most.
    PERFORM messages.check_lock_room('take_over()', (
        SELECT count(*) FROM (
            SELECT q.look_due FROM messages.queue q
            UNION ALL
            SELECT q.rate_mark FROM messages.queue q WHERE q.rate_limit IS NOT NULL
            UNION ALL
            SELECT l.mark FROM messages.used_lanes() u LEFT JOIN messages.lane l USING (queue_name, priority)) needed (sequence)
         WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = needed.sequence)));
    PERFORM messages.mend_lanes(q.queue_name) FROM messages.queue q;
    PERFORM messages.open_lane(u.queue_name, u.priority) FROM messages.used_lanes() u;
    PERFORM messages.mend_lanes(q.queue_name) FROM messages.queue q;
    made := messages.mend_timers();
    PERFORM setval('messages.rings_paused_until', 1);
    -- The places in the log are transactions of the server that the archive comes from. Where they lie in the future of this
    -- one, nobody would read them for years: move them into its past, in the same order.
    SELECT max(a.xid) INTO newest FROM messages.archive_rows a;
    IF newest >= horizon THEN
        UPDATE messages.archive_rows a SET xid = floor(a.xid::numeric * (horizon - 1) / newest);
        GET DIAGNOSTICS renamed = ROW_COUNT;
    END IF;
    PERFORM messages.begin_history();
    PERFORM messages.make_archive_partitions();
    UPDATE messages.upkeep_run u SET server = c.system_identifier FROM pg_control_system() c;
    RETURN jsonb_build_object('sequences_moved', moved, 'timers_made', made, 'archive_moved', renamed);
END $$;
COMMENT ON FUNCTION messages.take_over() IS
    'Makes a copy of the queue, such as a restored dump or a logical replica, continue where the original ended: moves sequences past the ids that are taken, makes the marks and timers that are missing, moves the archive as a log into the past of this server. Nobody may use the queue meanwhile. Safe to repeat; an installation calls it if the server is not that of the last installation. PQ016: an upkeep runs for more than three seconds; PQ018: thousands of marks are missing, and the server has no room to lock them.';
