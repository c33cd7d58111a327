-- Maintenance: what runs every minute.
--
-- Maintenance adds speed, never correctness. It visits each queue that has messages (scan_next). Then it makes partitions, applies
-- retention, records the history, and deletes records that are kept for a limited time. A step that fails is recorded and stops no
-- other. adopt_copy lets a copy of the queue, such as a restored dump, continue by itself.
--
-- pg_cron runs it, or Airflow where there is no pg_cron: maintenance_mode returns which.
--
-- Tables: maintenance_run, maintenance_failure.

CREATE OR REPLACE FUNCTION messages.maintain(with_queues boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
    notified     bigint      := 0;
    locks    bigint      := 0;
    done     jsonb       := '{}';
BEGIN
    INSERT INTO messages.maintenance_run (only_row) SELECT true WHERE NOT EXISTS (SELECT FROM messages.maintenance_run) ON CONFLICT DO NOTHING;
    -- One run at a time is enough; the others find nothing to do.
    SELECT CASE WHEN maintain.with_queues THEN coalesce(u.next_queue, '') END INTO name FROM messages.maintenance_run u FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('skipped', 'another maintenance run is in progress');
    END IF;
    PERFORM messages.pause_notifications();
    -- Here and below, a stored time that lies ahead comes from a wrong clock and counts as none.
    -- The next run takes the queues that a statement_timeout would undo, or that would lock more than about a thousand relations.
    WHILE name IS NOT NULL AND locks < 900 AND (patience IS NULL OR clock_timestamp() < statement_timestamp() + patience / 2) LOOP
        locks := locks + 1 + (SELECT count(l.mark) FROM messages.lane l WHERE l.queue_name = name);
        SELECT * INTO next FROM messages.scan_next(name);
        name := next.queue_name;
        freed := freed + next.freed;
        archived := archived + next.archived;
        notified := notified + next.notified;
    END LOOP;
    -- The steps that lock the archive come last, because everybody who archives waits from there to the commit.
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
            PERFORM messages.record_maintenance_step(step.name, '');
        EXCEPTION WHEN OTHERS THEN
            PERFORM messages.record_maintenance_step(step.name, '', SQLSTATE, SQLERRM);
        END;
    END LOOP;
    -- Retention is applied each hour. A failure that has not come back since then is over, or its queue or partition is gone.
    DELETE FROM messages.maintenance_failure f WHERE f.failed_at NOT BETWEEN clock_timestamp() - interval '2 hours' AND clock_timestamp();
    UPDATE messages.maintenance_run u
       SET finished_at = clock_timestamp(), done_by = coalesce(nullif(current_setting('application_name'), ''), session_user), next_queue = name,
           cron_at = CASE WHEN by_cron THEN clock_timestamp() ELSE u.cron_at END, cron_role = CASE WHEN by_cron THEN session_user ELSE u.cron_role END;
    RETURN jsonb_build_object('freed', freed, 'archived', archived, 'notified', notified, 'partitions_made', 0, 'partitions_dropped', 0,
                              'archive_deleted', 0, 'cron_history_purged', 0, 'history_rows', 0) || done;
END $$;
COMMENT ON FUNCTION messages.maintain IS
    'Ends what is due and notifies again for waiting messages, in several hundred queues that have messages; the next run continues with the others. Makes partitions, applies retention, deletes old dedup keys, and purges the history of its own pg_cron jobs. Returns how many expired leases and delays it ended (freed), and how many messages it archived (archived) and notified for (notified). Idempotent, and safe to run concurrently. Adds speed, never correctness. Without with_queues it leaves out the queues, which scan_next() has visited before. A step that fails is a warning and a row of health(), and leaves the others alone.'
    ' [for: maintenance]';

CREATE OR REPLACE FUNCTION messages.scan_next(INOUT queue_name text, OUT freed bigint, OUT archived bigint, OUT notified bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    given text := coalesce(queue_name, '');
    here  text;
    more  boolean;
BEGIN
    here := least((SELECT m.queue_name FROM messages.message_rows m WHERE m.queue_name >= given ORDER BY m.queue_name LIMIT 1),
                  (SELECT t.queue_name FROM messages.timer t WHERE t.queue_name >= given ORDER BY t.queue_name LIMIT 1));
    freed := 0;
    archived := 0;
    notified := 0;
    -- An error in one queue must not keep the others from being visited.
    BEGIN
        PERFORM messages.repair_lanes(here);
        SELECT * INTO freed, archived, more FROM messages.end_due(here, 5000);
        PERFORM messages.scan_queue(here) WHERE NOT more;
        notified := coalesce((SELECT messages.notify_waiting(here, 100) FROM messages.queue q
                           WHERE q.queue_name = here AND NOT more AND q.notify <> 'off' AND NOT q.paused AND NOT messages.notifications_are_paused()), 0);
        PERFORM messages.record_maintenance_step('scan_next', here);
    EXCEPTION WHEN OTHERS THEN
        more := false;
        PERFORM messages.record_maintenance_step('scan_next', coalesce(here, ''), SQLSTATE, SQLERRM);
    END;
    queue_name := CASE WHEN more THEN here ELSE
        least((SELECT m.queue_name FROM messages.message_rows m WHERE m.queue_name > here ORDER BY m.queue_name LIMIT 1),
              (SELECT t.queue_name FROM messages.timer t WHERE t.queue_name > here ORDER BY t.queue_name LIMIT 1)) END;
END $$;
COMMENT ON FUNCTION messages.scan_next IS
    'The first part of a maintenance run, in transactions that stay short: ends what is due in the first queue from this name on that has messages, 5,000 of them at most, notifies again for its waiting messages, and returns the name for the next call, which is NULL after the last queue. Begin with an empty name. An error is recorded for health(), and the next queue follows.'
    ' [for: maintenance]';

CREATE OR REPLACE FUNCTION messages.record_maintenance_step(step text, subject text, state text DEFAULT NULL, error text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF record_maintenance_step.state IS NULL THEN
        DELETE FROM messages.maintenance_failure f WHERE f.step = record_maintenance_step.step AND f.subject = left(record_maintenance_step.subject, 255);
        RETURN;
    END IF;
    RAISE WARNING 'maintenance could not run %(%): %', record_maintenance_step.step, left(record_maintenance_step.subject, 255), left(record_maintenance_step.error, 500);
    INSERT INTO messages.maintenance_failure AS f (step, subject, sqlstate, error)
    VALUES (record_maintenance_step.step, left(record_maintenance_step.subject, 255), record_maintenance_step.state, left(record_maintenance_step.error, 500))
    ON CONFLICT (step, subject) DO UPDATE SET sqlstate = excluded.sqlstate, error = excluded.error, failed_at = excluded.failed_at;
END $$;
COMMENT ON FUNCTION messages.record_maintenance_step IS
    'Records that a step of maintenance failed for a queue or partition, with a warning, or, without a state, that it succeeded.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.delete_expired_records(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept  record;
    stage record;
BEGIN
    FOR kept IN
        SELECT * FROM (VALUES
            ('dedup', 'expires_at', interval '0'), ('inbox', 'handled_at', '30 days'), ('dispatch', 'ended_at', '30 days'),
            ('failed_attempt', 'failed_at', '30 days'), ('pipeline_run', 'started_at', '90 days')) AS kept (relation, since, period)
    LOOP
        EXECUTE format('DELETE FROM messages.%1$I WHERE ctid = ANY (ARRAY(
                            SELECT o.ctid FROM messages.%1$I o WHERE o.%2$I <= clock_timestamp() - $1
                             ORDER BY o.%2$I LIMIT $2 FOR UPDATE SKIP LOCKED))', kept.relation, kept.since) USING kept.period, max_rows;
    END LOOP;
    FOR stage IN
        SELECT s.number FROM messages.publish_stage s WHERE s.expires_at <= clock_timestamp()
         ORDER BY s.expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            PERFORM messages.drop_or_empty_stage(stage.number);
            PERFORM messages.record_maintenance_step('drop_or_empty_stage', stage.number::text);
        EXCEPTION WHEN OTHERS THEN
            PERFORM messages.record_maintenance_step('drop_or_empty_stage', stage.number::text, SQLSTATE, SQLERRM);
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.delete_expired_records IS 'Deletes what is kept for a limited time: expired dedup keys, entries of the inbox, ended dispatches and failed attempts after 30 days, runs of pipelines after 90; drops stages whose job died a day ago.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.adopt_copy() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    horizon bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    newest  bigint;
    moved   integer := 0;
    made    integer := 0;
    renamed bigint := 0;
    lost    bigint;
    counter record;
BEGIN
    PERFORM messages.lock_row('messages.maintenance_run');
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
    -- Make only what is missing. The next scan corrects the marks that came with the copy, and a scan is due in a minute at most.
    PERFORM messages.check_lock_room('adopt_copy()', (
        SELECT count(*) FROM (
            SELECT q.scan_due FROM messages.queue q
            UNION ALL
            SELECT q.rate_mark FROM messages.queue q WHERE q.rate_limit IS NOT NULL
            UNION ALL
            SELECT l.mark FROM messages.used_lanes() u LEFT JOIN messages.lane l USING (queue_name, priority)) needed (sequence)
         WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = needed.sequence)));
    PERFORM messages.repair_lanes(q.queue_name) FROM messages.queue q;
    PERFORM messages.open_lane(u.queue_name, u.priority) FROM messages.used_lanes() u;
    PERFORM messages.repair_lanes(q.queue_name) FROM messages.queue q;
    -- A dump without the archive has the list of dead messages, but no body that could be requeued.
    DELETE FROM messages.dead_message d
     WHERE NOT EXISTS (SELECT FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at);
    GET DIAGNOSTICS lost = ROW_COUNT;
    IF lost > 0 THEN
        RAISE WARNING 'dead messages that this copy has no archived row of, and that are no longer open: %', lost;
    END IF;
    made := messages.repair_timers();                          -- also that of a group which a dead message blocked
    PERFORM setval('messages.notifications_paused_until', 1);
    -- The places in the log are transactions of the server that the archive comes from. If they lie in the future of this
    -- server, behind every transaction that has begun, no reader would get them for years: move them into its past, in the same order.
    SELECT max(a.xid) INTO newest FROM messages.archive_rows a;
    IF newest > greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1, pg_current_xact_id()::text::bigint) THEN
        UPDATE messages.archive_rows a SET xid = floor(a.xid::numeric * (horizon - 1) / newest);
        GET DIAGNOSTICS renamed = ROW_COUNT;
    END IF;
    PERFORM messages.begin_history();
    PERFORM messages.make_archive_partitions();
    UPDATE messages.maintenance_run u SET server = c.system_identifier FROM pg_control_system() c;
    RETURN jsonb_build_object('sequences_moved', moved, 'timers_made', made, 'archive_moved', renamed, 'dead_lost', lost);
END $$;
COMMENT ON FUNCTION messages.adopt_copy IS
    'Makes a copy of the queue, such as a restored dump or a logical replica, continue where the original ended: moves sequences past the ids that are taken, makes the marks and timers that are missing, moves the archive as a log into the past of this server, and takes dead messages without an archived row off their list. Nobody may use the queue meanwhile. Safe to repeat; an installation calls it if the server is not that of the last installation. PQ016: maintenance runs for more than three seconds; PQ018: thousands of marks are missing, and the server has no room to lock them.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT 1 $$;
COMMENT ON FUNCTION messages.schema_version IS
    'The oldest version of the schema whose workers can run next to this one; an older package refuses to run.'
    ' [for: every role]';

CREATE OR REPLACE FUNCTION messages.latest_migration() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(max(version), 0) FROM messages.schema_migration $$;
COMMENT ON FUNCTION messages.latest_migration IS 'The newest migration that was applied.'
    ' [for: every role]';

CREATE OR REPLACE FUNCTION messages.maintenance_mode() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM messages.maintenance_run u WHERE u.cron_at BETWEEN clock_timestamp() - interval '3 minutes' AND clock_timestamp()
                                -- Any member of messages_maintenance can repeat expect_cron(): only a finished run counts.
                                AND coalesce(u.finished_at > clock_timestamp() - interval '6 minutes', true))
           THEN 'pg_cron' ELSE 'airflow' END
$$;
COMMENT ON FUNCTION messages.maintenance_mode IS
    'Who runs maintenance: pg_cron if it ran it, or got the job, within the last three minutes, and somebody has run it within the last six; else airflow.'
    ' [for: every role]';
