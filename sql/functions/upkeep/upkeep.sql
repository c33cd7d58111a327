CREATE OR REPLACE FUNCTION messages.upkeep(with_queues boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    next     record;
    step     record;
    outcome  jsonb;
    name     text;
    patience interval    := nullif(current_setting('statement_timeout'), '0');
    by_cron  boolean     := current_setting('application_name') = 'pg_cron';
    freed    bigint      := 0;
    archived bigint      := 0;
    rung     bigint      := 0;
    locks    bigint      := 0;
    done     jsonb       := '{}';
BEGIN
    INSERT INTO messages.upkeep_run (only_row) SELECT true WHERE NOT EXISTS (SELECT FROM messages.upkeep_run) ON CONFLICT DO NOTHING;
    -- One at a time is enough; the others find nothing to do.
    SELECT CASE WHEN upkeep.with_queues THEN coalesce(u.next_queue, '') END INTO name FROM messages.upkeep_run u FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('skipped', 'another upkeep is running');
    END IF;
    PERFORM messages.pause_rings();
    -- Here and below, a stored time that lies ahead is of a clock that was wrong, and counts as none.
    -- What a statement_timeout would undo is left to the next; and so is what would lock more than about a thousand relations until the commit.
    WHILE name IS NOT NULL AND locks < 900 AND (patience IS NULL OR clock_timestamp() < statement_timestamp() + patience / 2) LOOP
        locks := locks + 1 + (SELECT count(l.mark) FROM messages.lane l WHERE l.queue_name = name);
        SELECT * INTO next FROM messages.look_at_next(name);
        name := next.queue_name;
        freed := freed + next.freed;
        archived := archived + next.archived;
        rung := rung + next.rung;
    END LOOP;
    -- What locks the archive comes last, because everybody who archives waits from there to the commit.
    FOR step IN
        SELECT * FROM (VALUES
            ('purge_cron_history', 'SELECT jsonb_build_object(''cron_history_purged'', messages.purge_cron_history())'),
            ('delete_expired_records', 'SELECT ''{}''::jsonb FROM messages.delete_expired_records()'),
            ('delete_old_history', 'SELECT ''{}''::jsonb FROM messages.delete_old_history()'),
            ('drop_unused_sequences', 'SELECT ''{}''::jsonb FROM messages.drop_unused_sequences()'),
            ('record_history', 'SELECT jsonb_build_object(''history_rows'', messages.record_history())'),
            -- CASE, because a join may call the function before it finds that nothing is due.
            ('apply_retention', 'SELECT CASE WHEN (p.retention_applied_at BETWEEN clock_timestamp() - interval ''1 hour'' AND clock_timestamp()) IS NOT TRUE
                                        THEN (SELECT jsonb_build_object(''partitions_dropped'', r.partitions_dropped, ''archive_deleted'', r.messages_deleted)
                                                FROM messages.apply_retention() r) END FROM messages.archive_policy p'),
            ('make_archive_partitions', 'SELECT jsonb_build_object(''partitions_made'', messages.make_archive_partitions())')) AS steps (name, statement)
    LOOP
        BEGIN
            EXECUTE step.statement INTO outcome;
            done := done || coalesce(outcome, '{}');
            PERFORM messages.record_upkeep_step(step.name, '');
        EXCEPTION WHEN OTHERS THEN
            PERFORM messages.record_upkeep_step(step.name, '', SQLSTATE, SQLERRM);
        END;
    END LOOP;
    -- Retention is applied each hour. A failure that has not come back since then is over, or its queue or partition is gone.
    DELETE FROM messages.upkeep_failure f WHERE f.failed_at NOT BETWEEN clock_timestamp() - interval '2 hours' AND clock_timestamp();
    UPDATE messages.upkeep_run u
       SET finished_at = clock_timestamp(), done_by = coalesce(nullif(current_setting('application_name'), ''), session_user), next_queue = name,
           cron_at = CASE WHEN by_cron THEN clock_timestamp() ELSE u.cron_at END, cron_role = CASE WHEN by_cron THEN session_user ELSE u.cron_role END;
    RETURN jsonb_build_object('freed', freed, 'archived', archived, 'rung', rung, 'partitions_made', 0, 'partitions_dropped', 0,
                              'archive_deleted', 0, 'cron_history_purged', 0, 'history_rows', 0) || done;
END $$;
COMMENT ON FUNCTION messages.upkeep(boolean) IS
    'Ends what is due, rings again for what waits, in some hundred queues that have messages, after which the next upkeep continues; makes partitions, applies retention, deletes old dedup keys, purges its own pg_cron history. Returns how many expired leases and delays it ended (freed), messages it archived (archived) and rang for (rung). Idempotent, and safe to run concurrently. Adds speed, never correctness. Without with_queues it leaves out the queues, which look_at_next() went through before. A step that fails is a warning and a row of health(), and leaves the others alone.';
