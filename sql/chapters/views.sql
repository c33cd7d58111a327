-- Views: queues, messages, dispatches and the archive without bodies.
--
-- A view shows a login the queues that it may observe, and of an error only the class, unless the login may read bodies.
-- session_reach has both for the current login; the other views read it, and so do the functions that observe. A view runs with
-- the rights of its owner, so its readers need no privilege on a table. archive_retention is for functions; no role may read it.
--
-- The views are made before the functions: a function in LANGUAGE sql is checked when it is made, so it stands below what it names.
--
-- Tables: none.

-- A role that reads a view needs EXECUTE on the functions in it, but no privilege on the tables.
CREATE OR REPLACE VIEW messages.session_reach AS
SELECT login.everything,
       ARRAY(SELECT g.queue_name FROM messages.queue_grant g
              WHERE g.privilege IN ('observe', 'consume') AND pg_has_role(session_user, g.grantee, 'MEMBER')) AS queue_names,
       login.shows_bodies AND (has_table_privilege(session_user, 'messages.message'::regclass, 'SELECT')
                               OR has_table_privilege(session_user, 'messages.message_archive'::regclass, 'SELECT')
                               OR login.leases AND login.everything) AS bodies,
       ARRAY(SELECT g.queue_name FROM messages.queue_grant g
              WHERE g.privilege = 'consume' AND pg_has_role(session_user, g.grantee, 'MEMBER') AND login.leases AND login.shows_bodies) AS body_queues
  FROM (SELECT coalesce(NOT pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER'), true)
               OR pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS TRUE AS everything,
               -- A page sets messages.bodies to off for a user who may see less than its login.
               current_setting('messages.bodies', true) IS DISTINCT FROM 'off' AS shows_bodies,
               EXISTS (SELECT FROM pg_proc p
                        WHERE p.pronamespace = 'messages'::regnamespace AND p.proname IN ('lease', 'lease_dead', 'consume')
                          AND has_function_privilege(session_user, p.oid, 'EXECUTE')) AS leases) AS login;
COMMENT ON VIEW messages.session_reach IS 'What this login may observe: everything, unless session_is_limited(), or these queues; and whose bodies it may read, from the tables or with a lease, and so the texts of errors too.';

CREATE OR REPLACE VIEW messages.queue_overview WITH (security_barrier) AS
SELECT queue_name, max_attempts, lease_for, backoff_first, backoff_max, handler_timeout, retention, dedup_window, max_leased,
       max_leased_per_group, rate_limit, rate_period, rate_burst, max_body_bytes, fair_by,
       notify, on_dead_head, paused, created_at
  FROM messages.queue
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.queue_overview IS 'The queues and their policies.';

CREATE OR REPLACE VIEW messages.message_overview WITH (security_barrier) AS
SELECT id, queue_name, priority, created_at, nullif(visible_at, 'infinity') AS visible_at, leased_at, lock_expires_at, locked_by, attempts, requeues,
       requeued_from, reference, expires_at, pg_column_size(message) AS body_bytes, topic, group_key, due_at,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN ltrim(last_error)
            ELSE substring(last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END AS last_error
  FROM messages.message_rows
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.message_overview IS 'Messages that are not finished, without bodies, headers and tokens; last_error is only the class of the error, unless this login may read the bodies; visible_at is NULL while a message waits behind others of its group.';

CREATE OR REPLACE VIEW messages.dispatch_overview WITH (security_barrier) AS
SELECT dispatch_id, queue_name, dag_id, run_id, on_failure, dispatched_by, ids, opened_at, started_at, seen_at, ended_at,
       result, CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN details END AS details,
       CASE WHEN ended_at IS NOT NULL THEN result WHEN started_at IS NULL THEN 'unstarted' ELSE 'running' END AS run_state
  FROM messages.dispatch
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.dispatch_overview IS 'Messages and the DAG runs that they were handed to, also the ended ones of the last 30 days. Open dispatches have no ended_at. seen_at is when Airflow last said that the run is queued or running, or when a dispatcher was about to start it; run_state is what Airflow said: unstarted, running, or how the run ended. Only whoever may read the bodies sees details.';

CREATE OR REPLACE VIEW messages.archive_overview WITH (security_barrier) AS
SELECT id, queue_name, result, priority, created_at, leased_at, archived_at, attempts, handled_by,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN details END AS details,
       reference, requeues,
       requeued_from, resolution, resolved_at, resolved_by, requeued_as, dismissed_for, pg_column_size(message) AS body_bytes,
       topic, group_key, fingerprint, output,
       CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN failure
            WHEN failure ? 'error' THEN jsonb_build_object('error', failure -> 'error') END AS failure
  FROM messages.archive_rows
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.archive_overview IS 'Finished messages, without bodies and headers; of an error, only whoever may read the bodies sees more than its class.';

CREATE OR REPLACE VIEW messages.archive_retention AS
SELECT q.queue_name, q.retention, q.created_at AS since FROM messages.queue q WHERE q.retention IS NOT NULL
UNION ALL
SELECT d.queue_name, d.retention, d.dropped_at FROM messages.dropped_queue d
 WHERE NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = d.queue_name);
COMMENT ON VIEW messages.archive_retention IS 'How long the archive keeps messages of queues that have a retention, or had one when they were dropped.';
