-- What the page in the browser shows next to the verbs. web sends these; cli sends `bodies` too.

-- name: limits_of_page
-- A page that waits holds a thread of its server, in Airflow of the whole API server. The settings are for this transaction
-- only, because behind a pooler the next client gets the session. The queries of the page are short, so compiling them costs
-- more than it gives. Texts of errors are for users who may read bodies, whatever the login of the connection may.
SELECT pg_catalog.set_config('statement_timeout', %(longest)s, true),
       pg_catalog.set_config('lock_timeout', %(locked)s, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('messages.bodies', %(bodies)s, true)

-- name: refused_verbs
-- The verbs that the page offers, and what this login lacks for them, as PostgreSQL and check_access() would check.
WITH verb (name, needs, privilege) AS (
    VALUES ('publish_test', 'messages_publisher', 'publish'), ('requeue_dead', 'messages_consumer', 'consume'),
           ('dismiss_dead', 'messages_consumer', 'consume'), ('release_messages', 'messages_consumer', 'consume'), ('cancel', 'messages_consumer', 'consume'),
           ('pause_queue', 'messages_admin', NULL), ('resume_queue', 'messages_admin', NULL),
           ('purge_queue', 'messages_admin', NULL), ('alter_queue', 'messages_admin', NULL))
SELECT v.name AS verb,
       CASE WHEN p.callable THEN format('SELECT messages.grant_queue(%%L, %%L, %%L)', %(queue_name)s::text, session_user, v.privilege)
            WHEN pg_has_role(session_user, to_regrole(v.needs), 'MEMBER') IS NOT TRUE THEN format('GRANT %%I TO %%I', v.needs, session_user)
            WHEN current_setting('server_version_num')::integer < 160000 THEN format('ALTER ROLE %%I INHERIT', session_user)
            ELSE format('GRANT %%I TO %%I WITH INHERIT TRUE', v.needs, session_user) END AS fix
  FROM verb v
 CROSS JOIN LATERAL (
    SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) AS callable
      FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = 'messages'::regnamespace AND p.proname IN (v.name, 'act_for')) p
 WHERE NOT p.callable
    OR (v.privilege IS NOT NULL AND messages.session_is_limited()
        AND %(queue_name)s::text NOT IN (SELECT messages.granted_queues(v.privilege)))

-- name: listeners
-- Nobody can see what another session listens to: these are the sessions that called themselves a listener or a worker.
SELECT a.application_name AS name, a.client_addr::text AS address, a.backend_start AS since, a.state_change AS active_at
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
   AND (a.application_name LIKE 'pgqueue%%' AND a.application_name <> 'pgqueue:page')
 ORDER BY a.backend_start LIMIT 50

-- name: dispatches_of_queue
SELECT d.dispatch_id, d.dag_id, d.run_id, cardinality(d.ids) AS messages, d.ids[1:5] AS ids, d.opened_at, d.started_at, d.seen_at
  FROM messages.dispatch_overview d
 WHERE d.queue_name = %(queue_name)s AND d.ended_at IS NULL
 ORDER BY d.dispatch_id DESC LIMIT 50

-- name: policy_of_queue
SELECT q.max_attempts, q.lease_for, q.backoff_first, q.backoff_max, q.handler_timeout, q.retention, q.dedup_window, q.max_leased,
       q.max_leased_per_group, q.rate_limit, q.rate_period, q.rate_burst, q.max_body_bytes, q.fair_by,
       q.notify, q.on_dead_head, q.created_at
  FROM messages.queue_overview q WHERE q.queue_name = %(queue_name)s

-- name: policy_columns
SELECT a.attname AS name, format_type(a.atttypid, NULL) AS type, replace(col_description(a.attrelid, a.attnum), 'NULL', 'empty') AS description
  FROM pg_attribute a
 WHERE a.attrelid = 'messages.queue'::regclass AND a.attnum > 0 AND NOT a.attisdropped

-- name: unfinished_message
-- A message that is not finished, without its body.
SELECT * FROM messages.message_overview WHERE id = %(id)s

-- name: finished_message
SELECT * FROM messages.archive_overview WHERE id = %(id)s

-- name: bodies
-- In lines here, because a program that reads a number and writes it again may round it.
SELECT f.id, f.bytes, CASE WHEN f.bytes <= %(largest)s THEN left(jsonb_pretty(f.message), %(longest)s + 1) END AS body, jsonb_pretty(f.headers) AS headers
  FROM (SELECT m.id, m.message, m.headers, pg_column_size(m.message) AS bytes FROM messages.message m WHERE m.id = ANY (%(ids)s)
        UNION ALL
        SELECT a.id, a.message, a.headers, pg_column_size(a.message) FROM messages.message_archive a WHERE a.id = ANY (%(ids)s)) f

-- name: scanned_back_to
-- The last of the messages that search_messages reads where it has no index; no row if it read all messages.
SELECT a.id FROM messages.archive_overview a WHERE %(after_id)s::bigint IS NULL OR a.id < %(after_id)s ORDER BY a.id DESC OFFSET 99999 LIMIT 1

-- name: count_dead
-- What an action on dead messages would do, if nothing changes until then. Later deaths are left out, because a message that is
-- requeued and dies again must not be requeued again by the same action.
WITH found AS MATERIALIZED (
    SELECT d.id, d.place
      FROM messages.dead_ids(
            %(queue_name)s, results => %(results)s, fingerprints => %(fingerprints)s, max_messages => %(most)s,
            reference => %(reference)s, since => %(since)s, until => least(%(until)s, clock_timestamp()))
           WITH ORDINALITY AS d (id, place))
SELECT (SELECT count(*) FROM found) AS count, ARRAY(SELECT f.id FROM found f ORDER BY f.place LIMIT 5) AS ids,
       (SELECT f.id FROM found f ORDER BY f.place DESC LIMIT 1) AS newest, least(%(until)s, clock_timestamp()) AS until

-- name: published_by
-- A task publishes under dag/run/task/map index, a run is all that begins with dag/run/. Any fifty: to sort them would read them all.
(SELECT m.id, m.queue_name, m.reference, m.created_at, NULL AS result, NULL AS resolution
   FROM messages.message_overview m WHERE m.reference ~>=~ %(first)s AND m.reference ~<~ %(beyond)s LIMIT 50)
UNION ALL
(SELECT a.id, a.queue_name, a.reference, a.created_at, a.result, a.resolution
   FROM messages.archive_overview a WHERE a.reference ~>=~ %(first)s AND a.reference ~<~ %(beyond)s LIMIT 50)
 ORDER BY id

-- name: dispatches_of_run
SELECT d.queue_name, d.dag_id, d.run_id, cardinality(d.ids) AS messages, d.ids[1:50] AS ids, d.opened_at, d.ended_at, d.run_state, d.details
  FROM messages.dispatch_overview d
 WHERE d.dag_id = %(dag_id)s AND (%(run_id)s::text IS NULL OR d.run_id = %(run_id)s)
 ORDER BY d.ended_at IS NOT NULL, d.dispatch_id DESC LIMIT 50
