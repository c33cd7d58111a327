CREATE OR REPLACE FUNCTION messages.upkeep() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    next     record;
    retained record;
    name     text   := '';
    freed    bigint := 0;
    archived bigint := 0;
    rung     bigint := 0;
    purged   bigint := 0;
    noted    bigint;
    made     integer;
BEGIN
    -- One at a time is enough; the others find nothing to do.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('messages.upkeep', 0)) THEN
        RETURN jsonb_build_object('skipped', 'another upkeep is running');
    END IF;
    PERFORM messages.pause_rings();
    WHILE name IS NOT NULL LOOP
        SELECT * INTO next FROM messages.look_at_next(name);
        name := next.queue_name;
        freed := freed + next.freed;
        archived := archived + next.archived;
        rung := rung + next.rung;
    END LOOP;
    purged := messages.purge_cron_history('3 days');
    PERFORM messages.delete_expired_records();
    noted := messages.note_history();
    -- Last, because everybody who archives waits from here to the commit.
    SELECT r.* INTO retained FROM messages.archive_policy p CROSS JOIN LATERAL messages.apply_retention() r
     WHERE p.retention_applied_at < clock_timestamp() - interval '1 hour' OR p.retention_applied_at IS NULL;
    made := messages.make_archive_partitions();
    INSERT INTO messages.upkeep_run AS u (finished_at, done_by)
    VALUES (clock_timestamp(), coalesce(nullif(current_setting('application_name'), ''), session_user))
    ON CONFLICT (only_row) DO UPDATE SET finished_at = excluded.finished_at, done_by = excluded.done_by;
    RETURN jsonb_build_object('freed', freed, 'archived', archived, 'rung', rung,
                              'partitions_made', made, 'partitions_dropped', coalesce(retained.partitions_dropped, 0),
                              'archive_deleted', coalesce(retained.messages_deleted, 0), 'cron_history_purged', purged, 'history_rows', noted);
END $$;
COMMENT ON FUNCTION messages.upkeep() IS
    'Ends what is due, rings again for what waits, makes partitions, applies retention, deletes old dedup keys, purges its own pg_cron history. Returns how many expired leases and delays it ended (freed), messages it archived (archived) and rang for (rung). Idempotent, and safe to run concurrently. Adds speed, never correctness.';
