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
    level   record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('messages.upkeep', 0));
    FOR counter IN
        SELECT v.sequence, greatest(v.used, 1) AS used FROM (VALUES
            ('messages.message_id_seq'::regclass, (SELECT greatest(max(m.id), (SELECT max(a.id) FROM messages.message_archive a)) FROM messages.message m)),
            (pg_get_serial_sequence('messages.group_without_head', 'id')::regclass, (SELECT max(g.id) FROM messages.group_without_head g)),
            (pg_get_serial_sequence('messages.publish_stage', 'number')::regclass, (SELECT max(s.number) FROM messages.publish_stage s)),
            ('messages.priority_sequence_number', (SELECT max(substring(c.relname, '[0-9]+$')::bigint) FROM pg_class c
                WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^(low_water|sweep_due)_[0-9]+$')),
            ('messages.depth_sequence_number', (SELECT max(substring(c.relname, '[0-9]+$')::bigint) FROM pg_class c
                WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^depth_(number|last|recount_at)_[0-9]+$'))
        ) AS v (sequence, used) WHERE v.used > coalesce(pg_sequence_last_value(v.sequence), 0)
    LOOP
        PERFORM setval(counter.sequence, counter.used);
        moved := moved + 1;
    END LOOP;
    -- A lease visits the priorities in this table only, each from its mark on.
    FOR level IN
        SELECT queue_name, priority FROM (SELECT DISTINCT m.queue_name, m.priority FROM messages.message m JOIN messages.queue q USING (queue_name)) known
        EXCEPT SELECT p.queue_name, p.priority FROM messages.queue_priority p
    LOOP
        PERFORM messages.create_priority_sequences(level.queue_name, level.priority);
        made := made + 1;
    END LOOP;
    PERFORM setval(p.low_water, 1), setval(p.sweep_due, 1) FROM messages.queue_priority p;
    PERFORM setval(q.depth_last, 0), setval(q.depth_recount_at, 1) FROM messages.queue q WHERE q.max_depth IS NOT NULL;
    PERFORM setval('messages.rings_paused_until', 1);
    -- The places in the log are transactions of the server that the archive comes from. Where they lie in the future of this
    -- one, nobody would read them for years: move them into its past, in the same order.
    SELECT max(a.xid) INTO newest FROM messages.message_archive a;
    IF newest >= horizon THEN
        UPDATE messages.message_archive a SET xid = floor(a.xid::numeric * (horizon - 1) / newest);
        GET DIAGNOSTICS renamed = ROW_COUNT;
    END IF;
    PERFORM messages.begin_history();
    PERFORM messages.make_archive_partitions();
    DELETE FROM messages.release_object o WHERE o.kind = 'cluster';
    INSERT INTO messages.release_object (kind, name, definition, server)
    SELECT 'cluster', c.system_identifier, '', current_setting('server_version_num')::integer / 10000 FROM pg_control_system() c;
    RETURN jsonb_build_object('sequences_moved', moved, 'priorities_made', made, 'archive_moved', renamed);
END $$;
COMMENT ON FUNCTION messages.take_over() IS
    'Makes a copy of the queue, such as a restored dump or a logical replica, continue where the original ended: moves sequences past the ids that are taken, makes the marks of all priorities anew, moves the archive as a log into the past of this server. Nobody may use the queue meanwhile. Safe to repeat; the installation does it on another server than the last one.';
