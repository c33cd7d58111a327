CREATE OR REPLACE FUNCTION messages.health(held_for interval DEFAULT '5 minutes', waiting_for interval DEFAULT '1 day')
RETURNS TABLE (check_name text, severity text, finding text, fix text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
    one record;
BEGIN
    PERFORM messages.check_duration('held_for', health.held_for, '0', '100 years', required => true),
            messages.check_duration('waiting_for', health.waiting_for, '0', '100 years', required => true);
    FOR one IN
        SELECT * FROM (VALUES
            ('upkeep_lag', ''), ('upkeep_steps', ''), ('cron_jobs', ''), ('cron_history', ''), ('dispatches', ''), ('held_snapshot', '$1'),
            ('dead_tuples', ''), ('notify_queue', ''), ('archive_partitions', ''),
            ('history', ''), ('copy', ''), ('grants', ''), ('limited_roles', ''), ('dead_messages', '$2'), ('groups', '$2'), ('waiting_messages', '$2')
        ) AS checks (check_name, arguments)
    LOOP
        -- A check that cannot run is itself a finding, and must not keep the others from running.
        BEGIN
            RETURN QUERY EXECUTE format('SELECT %1$L::text, c.severity, c.finding, c.fix FROM messages.health_%1$s(%2$s) c',
                                        one.check_name, one.arguments) USING health.held_for, health.waiting_for;
        EXCEPTION WHEN OTHERS THEN
            check_name := one.check_name;
            severity := 'warning';
            finding := format('not checked: %s', SQLERRM);
            fix := CASE SQLSTATE
                WHEN '42501' THEN format('GRANT pg_monitor TO %I', current_user)
                WHEN '55P03' THEN 'SELECT a.pid, a.application_name, a.xact_start, l.relation::regclass FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.mode = ''AccessExclusiveLock'' AND l.granted'
                ELSE '-- install the schema again: the setup DAG, or psql -f sql/install.sql' END;
            RETURN NEXT;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.health(interval, interval) IS
    'One row for each check: ok, warning or critical, what was found, and the SQL that fixes it (NULL when ok): statements to run one at a time, of which the first lifts statement_timeout where the work cannot be divided. held_for: how long a transaction may hold its snapshot, critical after twelve times as long; waiting_for: how long a ready or a dead message may wait. Only reads, and does not count the messages of queues or archive. PQ004: a duration is NULL or negative.';
