-- Health: what is wrong, and the statement that fixes it.
--
-- health calls a function for each check and returns severity, finding and fix. A check only reads, and is cheap on a large queue; if
-- nothing is wrong, its row is ok and has the number that was measured. A check that fails is a finding, and stops no other. The
-- name of a new check goes into the list inside health().
--
-- Tables: none.

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
            ('maintenance_lag', ''), ('maintenance_steps', ''), ('cron_jobs', ''), ('cron_history', ''), ('dispatches', ''), ('held_snapshot', '$1'),
            ('dead_tuples', ''), ('notify_queue', ''), ('archive_partitions', ''),
            ('retention', ''), ('copy', ''), ('grants', ''), ('limited_roles', ''), ('dead_messages', '$2'), ('groups', '$2'), ('waiting_messages', '$2')
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
COMMENT ON FUNCTION messages.health IS
    'One row for each check: ok, warning or critical, what was found, and the SQL that fixes it (NULL when ok): statements to run one at a time, of which the first lifts statement_timeout where the work cannot be divided. held_for: how long a transaction may hold its snapshot, critical after twelve times as long; waiting_for: how long a ready or a dead message may wait. Only reads, and does not count the messages of queues or archive. PQ004: a duration is NULL or negative.'
    ' [for: observer, maintenance]';

CREATE OR REPLACE FUNCTION messages.health_archive_partitions() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH part AS (SELECT * FROM messages.archive_partitions()),
    now_in AS (SELECT max(p.end_at) AS end_at FROM part p WHERE p.first_at <= clock_timestamp() AND p.end_at > clock_timestamp()),
    checked AS (
        SELECT EXISTS (SELECT FROM messages.message_archive_default) AS strays, now_in.end_at IS NULL AS none_now,
               NOT EXISTS (SELECT FROM part p WHERE p.first_at <= now_in.end_at AND p.end_at > now_in.end_at) AS none_next
          FROM now_in)
    SELECT CASE WHEN none_now AND NOT strays THEN 'critical' WHEN none_now OR none_next OR strays THEN 'warning' ELSE 'ok' END,
           format('partitions: %s, from %s to %s', (SELECT count(*) FROM part), (SELECT min(first_at) FROM part), (SELECT max(end_at) FROM part))
           || CASE WHEN strays THEN '; the default partition has messages' WHEN none_now THEN '; none for the current period'
                   WHEN none_next THEN '; none for the next period' ELSE '' END,
           CASE WHEN strays THEN 'SET statement_timeout = 0; SELECT messages.adopt_archive_default()'
                WHEN none_now OR none_next THEN 'SELECT messages.maintain()' END
      FROM checked
$$;
COMMENT ON FUNCTION messages.health_archive_partitions IS
    'A check of health(). Whether the archive has partitions for the current and the next period, and whether messages lie in its default partition.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_copy() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH used AS (
        SELECT greatest((SELECT max(m.id) FROM messages.message_rows m), (SELECT max(a.id) FROM messages.archive_rows a), 0) AS id),
    found (place, severity, finding, fix) AS (
        SELECT 1, 'critical', format('the next message gets an id up to %s, which is taken', u.id), 'SET statement_timeout = 0; SELECT messages.adopt_copy()'
          FROM used u WHERE u.id > coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)
        UNION ALL
        SELECT 2, 'critical', format('no lease sees the messages of queue %s with priority %s', l.queue_name, l.priority), 'SET statement_timeout = 0; SELECT messages.adopt_copy()'
          FROM messages.used_lanes() l
         WHERE NOT EXISTS (SELECT FROM messages.lane p WHERE p.used AND p.queue_name = l.queue_name AND p.priority = l.priority
                                                        AND (p.mark IS NULL OR EXISTS (SELECT FROM pg_class c WHERE c.oid = p.mark)))
           AND EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = l.queue_name)
        UNION ALL
        SELECT 3, 'critical', format('the queue was copied from server %s, and did not take over here', u.server), 'SET statement_timeout = 0; SELECT messages.adopt_copy()'
          FROM messages.maintenance_run u CROSS JOIN pg_control_system() c WHERE u.server <> c.system_identifier
        UNION ALL
        -- Requeue, dismiss and retention would fail: PostgreSQL could not tell a subscriber which row they change.
        SELECT 4, 'critical', format('publication %s has table %s, which has no replica identity', p.pubname, p.tablename),
               string_agg(format('ALTER TABLE %s REPLICA IDENTITY FULL', c.oid::regclass), '; ' ORDER BY c.relname)
          FROM pg_publication_tables p JOIN pg_publication b ON b.pubname = p.pubname AND (b.pubupdate OR b.pubdelete)
          JOIN pg_class top ON top.relnamespace = 'messages'::regnamespace AND top.relname = p.tablename
         -- A door and the tables that have its rows, because a partition does not inherit the replica identity.
         CROSS JOIN LATERAL (SELECT top.oid UNION SELECT t.relid FROM pg_partition_tree(top.oid) t WHERE t.isleaf) part
          JOIN pg_class c ON c.oid = part.oid
         WHERE p.schemaname = 'messages'
           AND (c.relreplident = 'n' OR c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary))
         GROUP BY p.pubname, p.tablename)
    SELECT CASE WHEN count(f.place) = 0 THEN 'ok' ELSE 'critical' END,
           CASE WHEN count(f.place) = 0 THEN 'ids and marks are those of this server'
                ELSE (array_agg(f.finding ORDER BY f.place, f.finding))[1]
                     || CASE WHEN count(f.place) > 1 THEN format('; and %s more', count(f.place) - 1) ELSE '' END END,
           (array_agg(f.fix ORDER BY f.place, f.finding))[1]
      FROM (VALUES (true)) AS one (row) LEFT JOIN found f ON true
$$;
COMMENT ON FUNCTION messages.health_copy IS
    'A check of health(). Whether a queue that was restored from a dump or replicated can be used here, and whether each of its tables in a publication has a replica identity, without which its rows cannot be changed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_dead_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN oldest.age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN oldest.age IS NULL THEN 'no dead message is open'
                ELSE format('open dead messages: %s; the oldest (%s, of queue %s) for %s',
                            CASE WHEN counted.count > 1000 THEN 'more than 1000' ELSE counted.count::text END,
                            oldest.result, oldest.queue_name, date_trunc('second', oldest.age)) END,
           CASE WHEN oldest.age > waiting_for THEN
               CASE WHEN oldest.result IN ('failed', 'lock_expired') THEN format('SELECT * FROM messages.requeue_dead(%L)', oldest.queue_name)
                    ELSE format('SELECT * FROM messages.dead_causes(%L) -- then requeue or dismiss them', oldest.queue_name) END END
      FROM (SELECT count(*) FROM (SELECT FROM messages.dead_message LIMIT 1001) bounded) counted
      LEFT JOIN LATERAL (
        SELECT first.* FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT d.queue_name, d.result, clock_timestamp() - d.archived_at AS age FROM messages.dead_message d
             WHERE d.queue_name = q.queue_name ORDER BY d.archived_at LIMIT 1) first
         ORDER BY first.age DESC LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_dead_messages IS
    'A check of health(). How long dead messages have been open; the fix requeues those of one queue that failed, and shows why others died.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_dead_tuples(smallest bigint DEFAULT 67108864) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Autovacuum begins at 10,000 dead versions plus a tenth of the live ones. At twice as many it is not keeping up.
    -- An entry of an index takes about 60 bytes and a page is two thirds full: 100 bytes a message, live or dead.
    SELECT CASE WHEN late.severity = 'ok' AND bloated THEN 'warning' ELSE late.severity END,
           format('dead versions: %s; messages: about %s; table %s, indexes %s, %s per message; last VACUUM %s',
                  s.n_dead_tup, s.n_live_tup, pg_size_pretty(size.heap), pg_size_pretty(size.indexes),
                  pg_size_pretty((size.heap + size.indexes) / greatest(s.n_live_tup, 1)),
                  coalesce(date_trunc('second', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::text || ' ago', 'never'))
           || CASE WHEN late.severity <> 'ok' THEN '. If held_snapshot names what holds back VACUUM, end that first'
                   WHEN bloated THEN format('; index %s: %s, %s bytes per message', largest.name, pg_size_pretty(largest.size), largest.size / entries) ELSE '' END,
           CASE WHEN late.severity <> 'ok' THEN 'SET statement_timeout = 0; VACUUM (ANALYZE) messages.message_rows'
                WHEN bloated THEN format('SET statement_timeout = 0; REINDEX INDEX CONCURRENTLY messages.%I', largest.name) END
      FROM pg_stat_all_tables s
     CROSS JOIN LATERAL (SELECT pg_table_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes, greatest(s.n_live_tup + s.n_dead_tup, 1) AS entries) size
     CROSS JOIN LATERAL (SELECT CASE WHEN s.n_dead_tup > 200000 + 2 * s.n_live_tup THEN 'critical'
                                     WHEN s.n_dead_tup > 20000 + 0.2 * s.n_live_tup THEN 'warning' ELSE 'ok' END AS severity) late
     CROSS JOIN LATERAL (SELECT c.relname AS name, pg_relation_size(c.oid) AS size
                           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = s.relid ORDER BY 2 DESC LIMIT 1) largest
     CROSS JOIN LATERAL (SELECT largest.size > smallest AND largest.size > entries * 1000 AS bloated) checked
     WHERE s.relid = 'messages.message_rows'::regclass
$$;
COMMENT ON FUNCTION messages.health_dead_tuples IS
    'A check of health(). Dead row versions and size of the table of messages, when it was vacuumed, and its largest index compared with what is in it; an index of less than smallest bytes is fine. From statistics.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_dispatches() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH open AS (
        SELECT d.*, clock_timestamp() - coalesce(d.seen_at, d.opened_at) AS unseen FROM messages.dispatch d WHERE d.ended_at IS NULL),
    worst AS (
        SELECT o.*, o.unseen > o.lease_for AS lost FROM open o WHERE o.unseen > o.lease_for / 2 ORDER BY o.unseen / extract(epoch FROM o.lease_for) DESC LIMIT 1)
    SELECT CASE WHEN worst.run_id IS NULL THEN 'ok' WHEN worst.lost THEN 'critical' ELSE 'warning' END,
           CASE WHEN worst.run_id IS NULL THEN format('open dispatches: %s', (SELECT count(*) FROM open))
                ELSE format('run %s of DAG %s was last seen %s ago, and its messages are leased for %s',
                            worst.run_id, worst.dag_id, date_trunc('second', worst.unseen), worst.lease_for) END,
           CASE WHEN worst.run_id IS NOT NULL THEN '-- nobody asks Airflow for the runs: schedule a PgQueueReconcileOperator' END
      FROM (VALUES (true)) AS one (row) LEFT JOIN worst ON true
$$;
COMMENT ON FUNCTION messages.health_dispatches IS
    'A check of health(). The open dispatch whose run nobody has seen for the largest part of its lease: half of it is a warning, all of it critical, because its messages may be delivered again.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_grants() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN count(e.grantee) = 0 THEN 'ok' ELSE 'critical' END,
           CASE WHEN count(e.grantee) = 0 THEN 'no role has privileges beyond the list of grants'
                ELSE string_agg(format('%s has %s on %s', e.grantee, e.privileges, array_to_string(e.things[:3], ', '))
                                || CASE WHEN cardinality(e.things) > 3 THEN format(' and %s more', cardinality(e.things) - 3) ELSE '' END, '; ' ORDER BY e.grantee, e.command) END,
           string_agg(e.command, '; ' ORDER BY e.grantee, e.command)
      FROM (VALUES (true)) AS one (row) LEFT JOIN messages.extra_grants() e ON true
$$;
COMMENT ON FUNCTION messages.health_grants IS
    'A check of health(). Each role that may read or run what it should not, as after ALTER DEFAULT PRIVILEGES of whoever installed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_groups(waiting_for interval, most integer DEFAULT 1000) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    -- Step from one group to the next in the index, however many messages each has; the first thousand groups of a queue.
    WITH RECURSIVE asked AS MATERIALIZED (SELECT clock_timestamp() AS moment),
    dead AS (
        SELECT q.queue_name, first.group_key, 1 AS number FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT d.group_key FROM messages.dead_message d WHERE d.queue_name = q.queue_name AND d.group_key IS NOT NULL
             ORDER BY d.queue_name, d.group_key LIMIT 1) first
         WHERE q.on_dead_head = 'block'
        UNION ALL
        SELECT d.queue_name, next.group_key, d.number + 1 FROM dead d
         CROSS JOIN LATERAL (
            SELECT n.group_key FROM messages.dead_message n WHERE n.queue_name = d.queue_name AND n.group_key > d.group_key
             ORDER BY n.queue_name, n.group_key LIMIT 1) next
         WHERE d.number < most),
    waiting AS (
        SELECT q.queue_name, first.group_key, first.visible_at, 1 AS number FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at FROM messages.message_rows m WHERE m.queue_name = q.queue_name AND m.group_key IS NOT NULL
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) first
        UNION ALL
        SELECT w.queue_name, next.group_key, next.visible_at, w.number + 1 FROM waiting w
         CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key > w.group_key
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) next
         WHERE w.number < most),
    stopped AS (
        SELECT b.queue_name, b.group_key, moment - greatest(head.since, next.since) AS age, head.ids, head.result
          FROM dead b CROSS JOIN asked
         CROSS JOIN LATERAL (
            SELECT min(h.archived_at) AS since, array_agg(h.id) AS ids, (array_agg(h.result))[1] AS result,
                   bool_or(h.lock_expires_at > moment) AS is_leased
              FROM (SELECT * FROM messages.dead_message d WHERE d.queue_name = b.queue_name AND d.group_key = b.group_key LIMIT 100) h) head
         CROSS JOIN LATERAL (
            SELECT coalesce(m.due_at, m.created_at) AS since FROM messages.message_rows m
             WHERE m.queue_name = b.queue_name AND m.group_key = b.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next
         WHERE head.is_leased IS NOT TRUE           -- else somebody is repairing it
        UNION ALL
        -- No message of the group has a place. Between two messages that lasts only an instant.
        SELECT w.queue_name, w.group_key, moment - coalesce(next.due_at, next.created_at), NULL, NULL
          FROM waiting w CROSS JOIN asked JOIN messages.queue q ON q.queue_name = w.queue_name
         CROSS JOIN LATERAL (
            SELECT * FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key = w.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next
         WHERE w.visible_at = 'infinity' AND coalesce(next.due_at, next.created_at) <= moment AND coalesce(next.lock_expires_at <= moment, true)
           AND NOT EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key = w.group_key AND m.place IS NOT NULL)
           AND (q.on_dead_head <> 'block'
                OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = w.queue_name AND d.group_key = w.group_key)))
    SELECT CASE WHEN worst.age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN worst.age IS NULL THEN 'no group is blocked'
                ELSE format('group %L of queue %s has waited for %s%s; blocked groups: %s', left(worst.group_key, 100), worst.queue_name,
                            date_trunc('second', worst.age),
                            CASE WHEN worst.ids IS NULL THEN ' although it has a free place'
                                 ELSE format(' behind dead message %s (%s)', worst.ids[1], worst.result) END, counted.groups) END,
           CASE WHEN worst.age > waiting_for THEN
               CASE WHEN worst.ids IS NULL THEN 'SELECT messages.maintain()'
                    WHEN worst.result IN ('failed', 'lock_expired') THEN
                        format('SELECT * FROM messages.requeue_dead(%L, ids => %L) -- or continue without it: SELECT messages.dismiss_dead(%1$L, ''why'', ids => %2$L)', worst.queue_name, worst.ids)
                    ELSE format('SELECT messages.dismiss_dead(%L, ''its group continues without it'', ids => %L) -- or requeue it with another body: messages.requeue_dead', worst.queue_name, worst.ids) END END
      FROM (SELECT count(*) AS groups FROM stopped) counted
      LEFT JOIN LATERAL (SELECT * FROM stopped s ORDER BY s.age DESC LIMIT 1) worst ON true
$$;
COMMENT ON FUNCTION messages.health_groups IS
    'A check of health(). Which group is blocked: by a dead message, or because nobody lets the next message in although its place is free. The fix requeues what failed, and dismisses what was rejected or expired. Looks at so many groups of a queue at most.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_held_snapshot(held_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- VACUUM keeps what a snapshot or a running transaction of this database may still see; the snapshot of another VACUUM does not count.
    WITH holder (name, age, transactions, unused, fix) AS (
        SELECT format('session %s (application %s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'without a name'), coalesce(a.state, 'state unknown')),
               coalesce(clock_timestamp() - a.xact_start, '0'), greatest(age(a.backend_xmin), age(a.backend_xid)), false, format('SELECT pg_terminate_backend(%s)', a.pid)
          FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
           AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v)
        UNION ALL
        SELECT format('prepared transaction %L of %s', p.gid, p.owner), clock_timestamp() - p.prepared, age(p.transaction), false,
               format('SELECT * FROM pg_prepared_xacts WHERE gid = %L -- then COMMIT PREPARED or ROLLBACK PREPARED, as whoever prepared it decides', p.gid)
          FROM pg_prepared_xacts p WHERE p.database = current_database()
        UNION ALL
        -- Slots and standbys show the age of their snapshot in transactions, not in time.
        SELECT format('replication slot %s (%s)', s.slot_name, CASE WHEN s.active THEN 'active' ELSE 'nobody uses it' END),
               NULL, greatest(age(s.xmin), age(s.catalog_xmin)), NOT s.active,
               format('SELECT * FROM pg_replication_slots WHERE slot_name = %1$L -- start what reads it, or if nothing will: SELECT pg_drop_replication_slot(%1$L)', s.slot_name)
          FROM pg_replication_slots s
         WHERE (s.database = current_database() OR s.database IS NULL) AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
        UNION ALL
        SELECT format('standby %s (session %s, hot_standby_feedback)', coalesce(nullif(r.application_name, ''), 'without a name'), r.pid),
               NULL, age(r.backend_xmin), false, format('SELECT pg_terminate_backend(%s) -- and end the long query on the standby', r.pid)
          FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL),
    checked AS (
        SELECT h.*, CASE WHEN h.age > held_for * 12 OR h.age IS NULL AND h.transactions > 100000000 THEN 2
                         WHEN h.age > held_for OR h.age IS NULL AND h.transactions > 1000000 OR h.unused THEN 1 ELSE 0 END AS bad FROM holder h),
    worst AS (SELECT * FROM checked ORDER BY bad DESC, transactions DESC, age DESC NULLS LAST LIMIT 1),
    hidden AS (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database() AND a.backend_type IS NULL)
    SELECT CASE WHEN worst.bad = 2 THEN 'critical' WHEN worst.bad = 1 OR hidden.count > 0 THEN 'warning' ELSE 'ok' END,
           concat_ws('; ',
               CASE WHEN worst.name IS NULL THEN 'nothing holds a snapshot'
                    ELSE format('%s holds back VACUUM; transactions since: %s; open for %s; holders of a snapshot: %s',
                                worst.name, worst.transactions, coalesce(date_trunc('second', worst.age)::text, 'an unknown time'), (SELECT count(*) FROM holder)) END,
               CASE WHEN hidden.count > 0 THEN format('sessions of other roles that hide their age from role %s: %s', current_user, hidden.count) END),
           CASE WHEN worst.bad > 0 THEN worst.fix WHEN hidden.count > 0 THEN format('GRANT pg_monitor TO %I', current_user) END
      FROM hidden LEFT JOIN worst ON true
$$;
COMMENT ON FUNCTION messages.health_held_snapshot IS
    'A check of health(). What holds back VACUUM of this database the most: a session, a prepared transaction, a replication slot or a standby. The query of a session is never shown.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_retention() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH age AS (
        SELECT clock_timestamp() - (SELECT min(d.expires_at) FROM messages.dedup d) AS dedup,
               clock_timestamp() - (SELECT min(i.handled_at) FROM messages.inbox i) AS inbox,
               clock_timestamp() - (SELECT coalesce(CASE WHEN p.retention_applied_at <= clock_timestamp() THEN p.retention_applied_at END, min(r.since))
                                      FROM messages.archive_policy p CROSS JOIN messages.archive_retention r GROUP BY p.retention_applied_at) AS retention),
    late (finding) AS (
        SELECT format('dedup keys that expired %s ago are still kept', date_trunc('second', dedup)) FROM age WHERE dedup > '1 hour'
        UNION ALL
        SELECT format('the inbox keeps 30 days and goes back %s', date_trunc('second', inbox)) FROM age WHERE inbox > '30 days 01:00'
        UNION ALL
        SELECT format('retention was last applied %s ago', date_trunc('second', retention)) FROM age WHERE retention > '1 day')
    SELECT CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           concat_ws('; ', string_agg(late.finding, '; '),
                format('the archive takes %s; queues without a retention: %s', pg_size_pretty(
                    (SELECT sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits i WHERE i.inhparent = 'messages.archive_rows'::regclass)),
                    (SELECT count(*) FROM messages.queue q WHERE q.retention IS NULL))),
           CASE WHEN count(*) > 0 THEN 'SELECT messages.maintain()' END
      FROM late
$$;
COMMENT ON FUNCTION messages.health_retention IS
    'A check of health(). Whether what is kept for a limited time is deleted on time: dedup keys, the inbox, the archive of queues with a retention.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_limited_roles() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH limited AS (
        SELECT r.oid, r.rolname FROM pg_roles r
         WHERE r.rolcanlogin AND pg_has_role(r.oid, to_regrole('messages_limited'), 'MEMBER')
           AND pg_has_role(r.oid, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE),
    found AS (SELECT l.* FROM limited l WHERE messages.reads_all_bodies(l.oid)),
    -- messages_pipeline is a member of messages_reader by design.
    resolution AS (
        SELECT DISTINCT format('REVOKE %s FROM %s', m.roleid::regrole, m.member::regrole) AS command
          FROM found f JOIN pg_auth_members m ON pg_has_role(f.oid, m.member, 'MEMBER')
         WHERE m.roleid IN (to_regrole('messages_reader'), to_regrole('messages_pipeline'), to_regrole('messages_raw'),
                            to_regrole('pg_read_all_data'))
           AND m.member IS DISTINCT FROM to_regrole('messages_pipeline')
        UNION
        SELECT format('REVOKE SELECT ON messages.message, messages.message_archive FROM %I', f.rolname)
          FROM found f JOIN pg_class c ON c.oid IN ('messages.message'::regclass, 'messages.message_archive'::regclass)
         CROSS JOIN aclexplode(c.relacl) a WHERE a.grantee = f.oid AND a.privilege_type = 'SELECT')
    SELECT CASE WHEN EXISTS (SELECT FROM found) THEN 'critical' ELSE 'ok' END,
           format('logins that are limited to their queues: %s%s', (SELECT count(*) FROM limited),
                  (SELECT '; of these read the bodies of all queues: ' || string_agg(quote_ident(f.rolname), ', ' ORDER BY f.rolname) FROM found f)),
           (SELECT coalesce(string_agg(r.command, '; ' ORDER BY r.command), '-- revoke what lets them read messages.message and messages.message_archive')
              FROM resolution r HAVING EXISTS (SELECT FROM found))
$$;
COMMENT ON FUNCTION messages.health_limited_roles IS
    'A check of health(). Whether a login that is limited to its queues can read the bodies of all of them.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_notify_queue(full_at double precision DEFAULT 0.25) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- The queue belongs to the whole server. A session that listens takes nothing out of it while its transaction is open.
    SELECT CASE WHEN used > greatest(full_at, 0.75) THEN 'critical' WHEN used > full_at THEN 'warning' ELSE 'ok' END,
           format('the notification queue of the server is %s %% full', round(used::numeric * 100, 4))
           || CASE WHEN used > full_at THEN
                coalesce(format('; if it listens, session %s (database %s, application %s, %s) holds it, with a transaction open for %s', behind.pid, behind.datname,
                                coalesce(nullif(behind.application_name, ''), 'without a name'), behind.state,
                                date_trunc('second', clock_timestamp() - behind.xact_start)), '; no session has a transaction open')
              ELSE '' END,
           CASE WHEN used > full_at THEN coalesce(format('SELECT pg_terminate_backend(%s)', behind.pid), 'NOTIFY new_message') END
      FROM pg_notification_queue_usage() AS used
      LEFT JOIN LATERAL (
        SELECT a.* FROM pg_stat_activity a
         WHERE used > full_at AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
         ORDER BY a.state NOT LIKE 'idle in transaction%', a.xact_start LIMIT 1) behind ON true
$$;
COMMENT ON FUNCTION messages.health_notify_queue IS
    'A check of health(). How full the notification queue is, and which session probably keeps it from being emptied.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_maintenance_lag() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT late.severity,
           CASE WHEN run.ahead THEN 'the time of the last maintenance run lies ahead: the clock was wrong then, and no maintenance ran since; it is due every minute'
                WHEN run.done_by IS NULL THEN format('no maintenance ran since the installation %s ago; it is due every minute', date_trunc('second', run.age))
                ELSE format('the last maintenance run was %s ago, by %s; it is due every minute', date_trunc('second', run.age), run.done_by) END,
           CASE WHEN late.severity <> 'ok' THEN 'SELECT messages.maintain() -- and every minute from now on: '
                || CASE WHEN messages.cron_database() = current_database() THEN 'the check cron_jobs says how, or ' ELSE '' END
                || 'start the DAG pgqueue_maintenance' END
      FROM (SELECT max(u.done_by) AS done_by, coalesce(max(u.finished_at) > clock_timestamp(), false) AS ahead, clock_timestamp() - coalesce(
                   max(u.finished_at), (SELECT min(m.applied_at) FROM messages.schema_migration m)) AS age
              FROM messages.maintenance_run u) run
     CROSS JOIN LATERAL (SELECT CASE WHEN run.ahead THEN 'critical' WHEN run.age <= '3 minutes' THEN 'ok' WHEN run.age <= '15 minutes' THEN 'warning'
                                     ELSE 'critical' END AS severity) late
$$;
COMMENT ON FUNCTION messages.health_maintenance_lag IS
    'A check of health(). When maintenance last ran, and who ran it; before the first run, when the schema was installed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_maintenance_steps() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
           CASE WHEN count(*) = 0 THEN 'no step of maintenance fails'
                ELSE 'all else continues, but maintenance fails in '
                     || string_agg(format('%s%s since %s: %s (%s)', f.step, ' for ' || quote_literal(nullif(f.subject, '')),
                                          date_trunc('second', f.since), f.error, f.sqlstate), '; ' ORDER BY f.place) FILTER (WHERE f.place <= 5)
                     || CASE WHEN count(*) > 5 THEN format('; and %s more in messages.maintenance_failure', count(*) - 5) ELSE '' END END,
           CASE WHEN count(*) > 0 THEN '-- remove what the error names; maintenance tries again each minute, and at once with: SELECT messages.maintain()' END
      FROM (SELECT u.*, row_number() OVER (ORDER BY u.since, u.step, u.subject) AS place FROM messages.maintenance_failure u) f
$$;
COMMENT ON FUNCTION messages.health_maintenance_steps IS
    'A check of health(). What maintenance cannot do: the step, the queue or partition, and the error, of the five that fail for longest.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.health_waiting_messages(waiting_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH asked AS MATERIALIZED (SELECT clock_timestamp() AS moment),
    waiting AS (
        SELECT q.queue_name, moment - min(coalesce(first.at, later.at)) AS oldest_age, q.paused
          FROM asked CROSS JOIN messages.used_lanes() l JOIN messages.queue q USING (queue_name)
         CROSS JOIN LATERAL (
            SELECT min(greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END))
                       FILTER (WHERE q.paused OR m.lock_expires_at IS NULL AND coalesce(m.expires_at > moment, true)) AS at, count(*) AS seen
              FROM (SELECT * FROM messages.message_rows m WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at <= moment
                     ORDER BY m.visible_at LIMIT 20) m) first
         -- The mark leads past many leases. Reading it locks it until the commit, so this does not read the marks of all queues. The mark
         -- is read before the messages, or the planner would compare each leased message with it.
          LEFT JOIN LATERAL (
            SELECT messages.stored_time(p.mark, moment) AS from_at FROM messages.lane p
             WHERE first.at IS NULL AND first.seen = 20 AND p.queue_name = l.queue_name AND p.priority = l.priority) mark ON true
          LEFT JOIN LATERAL (
            SELECT greatest(m.visible_at, CASE WHEN m.fair_key IS NOT NULL THEN m.created_at END) AS at FROM messages.message_rows m
             WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at BETWEEN mark.from_at AND moment
               AND m.lock_expires_at IS NULL AND coalesce(m.expires_at > moment, true)
             ORDER BY m.visible_at LIMIT 1) later ON true
         GROUP BY q.queue_name, q.paused, moment HAVING min(coalesce(first.at, later.at)) IS NOT NULL)
    SELECT CASE WHEN oldest.oldest_age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN oldest.queue_name IS NULL THEN 'no message waits'
                ELSE format('the oldest message of queue %s waits for %s%s; %s', oldest.queue_name, date_trunc('second', oldest.oldest_age),
                            CASE WHEN oldest.paused THEN ', the queue is paused' ELSE '' END, late.queues) END,
           CASE WHEN oldest.oldest_age > waiting_for THEN
               CASE WHEN oldest.paused THEN format('SELECT messages.alter_queue(%L, paused => false)', oldest.queue_name)
                    ELSE format('-- start a consumer of queue %s', oldest.queue_name) END END
      FROM (SELECT format('queues that wait too long: %s', count(*)) AS queues
              FROM waiting w WHERE w.oldest_age > waiting_for) late
      LEFT JOIN LATERAL (SELECT * FROM waiting w ORDER BY w.oldest_age DESC LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_waiting_messages IS
    'A check of health(). The queue whose oldest message that is ready waits longest.'
    ' [internal]';
