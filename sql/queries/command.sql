-- What the commands of pgqueue show. cli sends these, and puts the texts that a message keeps in place of {texts}.

-- name: queues
-- All queues with their policies.
SELECT * FROM messages.queue_overview ORDER BY queue_name

-- name: peek
-- Unfinished messages in the order in which they will be leased. The body as text, because a float would not show a number to its last digit.
SELECT id, CASE WHEN lock_expires_at > clock_timestamp() THEN 'leased'
                WHEN visible_at = 'infinity' THEN 'behind'
                WHEN visible_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
       priority, attempts, clock_timestamp() - created_at AS age, created_at,
       nullif(visible_at, 'infinity') AS visible_at, lock_expires_at, locked_by, {texts},
       last_error, headers, message::text AS message
  FROM messages.message m WHERE queue_name = %s ORDER BY m.priority DESC, m.visible_at, m.id LIMIT %s  -- the columns, not what is selected: the index has them

-- name: peek_headers
-- The same without bodies, for a login that may read only the view.
SELECT id, CASE WHEN lock_expires_at > clock_timestamp() THEN 'leased'
                WHEN visible_at IS NULL THEN 'behind'
                WHEN visible_at > clock_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
       priority, attempts, clock_timestamp() - created_at AS age, created_at,
       visible_at, lock_expires_at, locked_by, {texts},
       last_error, body_bytes
  FROM messages.message_overview WHERE id = ANY (ARRAY(SELECT messages.next_ids(%s, %s)))
 ORDER BY priority DESC, visible_at, id

-- name: moment_before
-- A time of the database's clock, so long ago.
SELECT clock_timestamp() - %s::interval

-- name: finished_since
-- The messages that were archived after a time, in any queue or in one.
SELECT id, queue_name, result, attempts, handled_by, details, reference, archived_at,
       archived_at - leased_at AS run_time
  FROM messages.archive_overview
 WHERE archived_at > %(since)s AND (%(queue)s::text IS NULL OR queue_name = %(queue)s)
 ORDER BY archived_at, id

-- name: finished_by_queue
-- The successes and the deaths of a period that ends now, by queue.
SELECT queue_name, count(*) FILTER (WHERE result = 'success'), count(*) FILTER (WHERE result NOT IN ('success', 'cancelled'))
  FROM messages.archive_overview WHERE archived_at > clock_timestamp() - %s::interval GROUP BY queue_name

-- name: privileges
-- The functions among these that this login may call, and whether it may work on the tables themselves.
SELECT coalesce(array_agg(p.proname::text) FILTER (WHERE has_function_privilege(p.oid, 'EXECUTE')), '{}'),
       has_table_privilege('messages.message', 'UPDATE')
  FROM pg_catalog.pg_proc p WHERE p.pronamespace = to_regnamespace('messages') AND p.proname = ANY (%s)

-- name: settings
-- Settings, as this session has them, that lose messages or keep dead versions, and too little room for the locks of a dump.
SELECT format('%s is %s (%s): %s', w.name, s.setting, s.source, w.without_it), format('set %s = %s', w.name, w.good)
  FROM (VALUES
    ('fsync', 'off', 'on', 'a crash of the machine loses or breaks data'),
    ('full_page_writes', 'off', 'on', 'a crash of the machine breaks data'),
    ('synchronous_commit', 'off', 'on', 'a crash loses publishes that were acknowledged'),
    ('autovacuum', 'off', 'on', 'nobody removes dead versions'),
    ('track_counts', 'off', 'on', 'autovacuum sees nothing to do'),
    ('track_activities', 'off', 'on', 'nobody sees who holds a snapshot'),
    ('session_replication_role', 'replica', 'origin', 'no trigger checks what plain SQL writes')) AS w (name, bad, good, without_it)
  JOIN pg_catalog.pg_settings s ON s.name = w.name AND s.setting = w.bad
UNION ALL
SELECT format('pg_dump and pg_upgrade lock the %s tables and sequences of this database, and max_locks_per_transaction is %s: they fail some day',
              locks.number, current_setting('max_locks_per_transaction')),
       format('set max_locks_per_transaction = %s and restart the server', ceil(4.0 * locks.number / room.sessions / 64) * 64)
  FROM (SELECT count(*) AS number FROM pg_catalog.pg_class c
         WHERE c.relkind IN ('r', 'p', 'S') AND c.relpersistence <> 't' AND c.relnamespace::regnamespace::text !~ '^(pg_|information_schema$)') locks
 CROSS JOIN (SELECT current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions) room
 WHERE locks.number > current_setting('max_locks_per_transaction')::bigint * room.sessions / 2
