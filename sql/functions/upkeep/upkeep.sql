CREATE OR REPLACE FUNCTION messages.upkeep() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    level    record;
    swept    record;
    retained record;
    freed    bigint := 0;
    archived bigint := 0;
    ended    text[];
    again    text[];
    occupied text[] := '{}';
    rung     bigint := 0;
    healed   bigint;
    purged   bigint := 0;
    noted    bigint;
    made     integer;
BEGIN
    -- One at a time is enough; the others find nothing to do.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('messages.upkeep', 0)) THEN
        RETURN jsonb_build_object('skipped', 'another upkeep is running');
    END IF;
    -- What sweep_queues has left, and all of it for whoever did not call it. Again where a group continues: what waited behind a
    -- message that expired may have expired as well. Where the first message is, is looked up once, for all that follows: a held
    -- snapshot keeps what was before it, and each walk to it would go over all of that.
    FOR turn IN 1..10 LOOP
        ended := '{}';
        FOR level IN SELECT o.* FROM messages.occupied_priority o WHERE turn = 1 OR o.queue_name = ANY (again) ORDER BY o.queue_name, o.priority DESC
        LOOP
            occupied := occupied || level.queue_name;
            CONTINUE WHEN NOT level.is_unswept;
            SELECT * INTO swept FROM messages.sweep_all(level.queue_name, level.priority, level.max_attempts, level.first_at);
            freed := freed + swept.freed;
            archived := archived + swept.archived;
            IF swept.archived > 0 THEN
                ended := ended || level.queue_name;
            END IF;
            IF swept.lowest < messages.stored_moment(level.low_water) THEN
                PERFORM messages.store_moment(level.low_water, swept.lowest);
            END IF;
        END LOOP;
        again := ARRAY(SELECT e.name FROM unnest(ended) AS e (name) WHERE EXISTS (SELECT FROM messages.group_head g WHERE g.queue_name = e.name));
        EXIT WHEN cardinality(again) = 0;
    END LOOP;
    SELECT coalesce(sum(r.healed), 0), occupied || array_agg(r.queue_name) FILTER (WHERE r.healed > 0) INTO healed, occupied
      FROM (SELECT q.queue_name, messages.repair_stuck_groups(q.queue_name) AS healed FROM messages.queue q
             WHERE EXISTS (SELECT FROM messages.group_head g WHERE g.queue_name = q.queue_name)
                -- What was published while the last message of a group was being finished waits without a head.
                OR EXISTS (SELECT FROM messages.group_without_head w WHERE w.queue_name = q.queue_name)) r;
    IF pg_notification_queue_usage() <= 0.5 THEN
        IF messages.stored_moment('messages.rings_paused_until') > clock_timestamp() + interval '1 minute' THEN    -- the clock went back
            PERFORM messages.store_moment('messages.rings_paused_until', clock_timestamp());
        END IF;
        SELECT coalesce(sum(messages.ring(q.queue_name, 100)), 0) INTO rung
          FROM messages.queue q WHERE q.notify <> 'off' AND NOT q.paused AND q.queue_name = ANY (occupied);
    END IF;
    purged := messages.purge_cron_history('3 days');
    PERFORM messages.delete_expired_records();
    PERFORM messages.suspend_futile_autovacuum();
    noted := messages.note_history();
    -- Last, because everybody who archives waits from here to the commit.
    SELECT r.* INTO retained FROM messages.archive_policy p CROSS JOIN LATERAL messages.apply_retention() r
     WHERE p.retention_applied_at < clock_timestamp() - interval '1 hour' OR p.retention_applied_at IS NULL;
    made := messages.make_archive_partitions();
    INSERT INTO messages.upkeep_run AS u (finished_at, done_by)
    VALUES (clock_timestamp(), coalesce(nullif(current_setting('application_name'), ''), session_user))
    ON CONFLICT (only_row) DO UPDATE SET finished_at = excluded.finished_at, done_by = excluded.done_by;
    RETURN jsonb_build_object('freed', freed, 'archived', archived, 'rung', rung, 'groups_repaired', healed,
                              'partitions_made', made, 'partitions_dropped', coalesce(retained.partitions_dropped, 0),
                              'archive_deleted', coalesce(retained.messages_deleted, 0), 'cron_history_purged', purged, 'history_rows', noted);
END $$;
COMMENT ON FUNCTION messages.upkeep() IS
    'Archives what expired, rings again for what waits, makes partitions, applies retention, deletes old dedup keys, purges its own pg_cron history. Returns how many expired leases it ended (freed), messages it archived (archived) and rang for (rung), and groups in which it made the next message ready (groups_repaired). Idempotent, and safe to run concurrently. Adds speed, never correctness.';
