-- Archive: what became of messages.
--
-- A finished message is one row of the archive, with exactly one result. message_outcomes and outcome_counts return the results of
-- messages by id or by reference, and search_messages finds messages by state, time and text. Each reads queue and archive in one
-- snapshot, so that it sees no message in both or in neither.
--
-- archive_log_end and split_archive_log are for Spark, which reads the archive as a log, in the order of transactions.
-- message_life returns all that is recorded about one message.
--
-- Tables: archive_rows.

CREATE OR REPLACE FUNCTION messages.message_outcomes(
    ids             bigint[],
    follow_requeues boolean DEFAULT false,
    with_output     boolean DEFAULT false
) RETURNS TABLE (id bigint, last_id bigint, queue_name text, result text, attempts smallint, failure text, fingerprint text, output jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    -- One statement, and so one snapshot: a message is never seen between the queue and the archive.
    WITH RECURSIVE chain (id, last_id, place) AS (
        SELECT DISTINCT given.id, given.id, 0 FROM unnest(message_outcomes.ids) AS given (id) WHERE given.id IS NOT NULL
        UNION ALL
        SELECT c.id, a.requeued_as, c.place + 1 FROM chain c JOIN messages.archive_rows a ON a.id = c.last_id CROSS JOIN messages.session_reach r
         WHERE message_outcomes.follow_requeues AND a.resolution = 'requeued' AND a.requeued_as > c.last_id
           AND (r.everything OR a.queue_name = ANY (r.queue_names))),
    ends AS (SELECT DISTINCT ON (c.id) c.id, c.last_id FROM chain c ORDER BY c.id, c.place DESC)
    SELECT e.id, e.last_id, coalesce(m.queue_name, a.queue_name),
           CASE WHEN m.id IS NOT NULL THEN NULL
                WHEN a.id IS NULL THEN 'unknown'
                -- A dead message is not finished while it is open.
                WHEN message_outcomes.follow_requeues AND a.result NOT IN ('success', 'cancelled') AND a.resolution IS NULL THEN NULL
                ELSE a.result END,
           coalesce(m.attempts, a.attempts), a.failure ->> 'error', a.fingerprint,
           CASE WHEN message_outcomes.with_output THEN a.output END
      FROM ends e
     CROSS JOIN messages.session_reach r
      LEFT JOIN LATERAL (SELECT * FROM messages.message_rows m
                          WHERE m.id = e.last_id AND (r.everything OR m.queue_name = ANY (r.queue_names))) m ON true
      LEFT JOIN LATERAL (SELECT * FROM messages.archive_rows a
                          WHERE m.id IS NULL AND a.id = e.last_id AND (r.everything OR a.queue_name = ANY (r.queue_names)) LIMIT 1) a ON true
     ORDER BY e.id
$$;
COMMENT ON FUNCTION messages.message_outcomes IS
    'What became of messages, by id: result is NULL while a message is not finished, and unknown if there is none that this login may observe. With follow_requeues, last_id is the latest message that repeats it, and a dead message is not finished while it is open. failure is the class of the error; output, only on demand, is what the handler returned.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.outcome_counts(
    ids             bigint[] DEFAULT NULL,
    reference       text     DEFAULT NULL,
    queue_name      text     DEFAULT NULL,
    follow_requeues boolean  DEFAULT false
) RETURNS TABLE (result text, number bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF outcome_counts.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(outcome_counts.queue_name, 'observe');
    END IF;
    IF outcome_counts.ids IS NOT NULL THEN
        RETURN QUERY SELECT o.result, count(*) FROM messages.message_outcomes(outcome_counts.ids, outcome_counts.follow_requeues) o GROUP BY o.result;
        RETURN;
    END IF;
    -- One statement, and so one snapshot: a message is never counted in the queue and in the archive.
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT * FROM messages.session_reach)
    SELECT found.result, count(*) FROM reach r CROSS JOIN LATERAL (
        SELECT m.queue_name, NULL::text AS result FROM messages.message_rows m WHERE m.reference = outcome_counts.reference
        UNION ALL
        SELECT a.queue_name, CASE WHEN outcome_counts.follow_requeues AND a.resolution IS NULL AND a.result NOT IN ('success', 'cancelled') THEN NULL ELSE a.result END
          FROM messages.archive_rows a
         -- The message that repeats a requeued message has the same reference, and counts in its place.
         WHERE a.reference = outcome_counts.reference AND a.resolution IS DISTINCT FROM 'requeued') found
     WHERE (r.everything OR found.queue_name = ANY (r.queue_names))
       AND (outcome_counts.queue_name IS NULL OR found.queue_name = outcome_counts.queue_name)
     GROUP BY found.result;
END $$;
COMMENT ON FUNCTION messages.outcome_counts IS
    'How many of these messages ended with each result, by ids, or by reference and queue: result is NULL for those that are not finished, and unknown for ids that this login may not observe or that do not exist. By reference, a message that was requeued counts as the one that repeats it. follow_requeues as in message_outcomes. PQ001: unknown queue.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.message_life(message_id bigint)
RETURNS TABLE (at timestamptz, entry text, queue_name text, actor text, attempt integer, result text, error text, details text,
               until timestamptz, other_id bigint, dag_id text, run_id text, reference text, traceback text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    waiting AS MATERIALIZED (
        SELECT m.*, r.bodies OR m.queue_name = ANY (r.body_queues) AS reads FROM messages.message_rows m CROSS JOIN reach r
         WHERE m.id = message_life.message_id AND (r.everything OR m.queue_name = ANY (r.queue_names))),
    finished AS MATERIALIZED (
        SELECT a.*, r.bodies OR a.queue_name = ANY (r.body_queues) AS reads FROM messages.archive_rows a CROSS JOIN reach r
         WHERE a.id = message_life.message_id AND (r.everything OR a.queue_name = ANY (r.queue_names))),
    one AS MATERIALIZED (
        SELECT w.queue_name, w.created_at, w.reference, w.requeued_from, w.requeues, w.leased_at, w.attempts::integer AS attempts, w.locked_by AS holder
          FROM waiting w
        UNION ALL
        SELECT f.queue_name, f.created_at, f.reference, f.requeued_from, f.requeues, f.leased_at, f.attempts, f.handled_by FROM finished f),
    failed AS MATERIALIZED (
        SELECT f.*, r.bodies OR f.queue_name = ANY (r.body_queues) AS reads FROM messages.failed_attempt f CROSS JOIN reach r
         WHERE f.message_id = message_life.message_id AND EXISTS (SELECT FROM one)),
    dispatched AS MATERIALIZED (
        SELECT d.*, r.bodies OR d.queue_name = ANY (r.body_queues) AS reads FROM messages.dispatch d CROSS JOIN reach r
         WHERE d.ids @> ARRAY[message_life.message_id] AND (r.everything OR d.queue_name = ANY (r.queue_names))),
    -- The facts of an entry are its values of the columns after queue_name; its place orders entries of the same time.
    life (place, at, entry, queue_name, facts) AS (
        SELECT 0, o.created_at, CASE WHEN o.requeued_from IS NULL THEN 'published' ELSE 'published again' END, o.queue_name,
               jsonb_build_object('other_id', o.requeued_from, 'reference', o.reference) FROM one o
        UNION ALL
        SELECT 1, w.created_at, CASE WHEN w.visible_at = 'infinity' THEN 'waits behind its group' ELSE 'delayed' END, w.queue_name,
               jsonb_build_object('until', nullif(w.visible_at, 'infinity'))
          FROM waiting w WHERE w.attempts = 0 AND w.leased_at IS NULL AND w.visible_at > w.created_at + interval '1 millisecond'
        UNION ALL
        SELECT 2, d.opened_at, 'dispatched', d.queue_name, jsonb_build_object('actor', d.dispatched_by, 'dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d
        UNION ALL
        SELECT 3, o.leased_at, 'leased', o.queue_name,
               jsonb_build_object('actor', o.holder, 'attempt', o.attempts, 'until', (SELECT w.lock_expires_at FROM waiting w))
          FROM one o WHERE o.leased_at IS NOT NULL AND NOT EXISTS (SELECT FROM failed f WHERE f.attempt = o.attempts)
        UNION ALL
        SELECT 3, f.leased_at, 'leased', f.queue_name, jsonb_build_object('actor', f.handled_by, 'attempt', f.attempt) FROM failed f
        UNION ALL
        SELECT 4, d.started_at, 'run started', d.queue_name, jsonb_build_object('dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d WHERE d.started_at IS NOT NULL
        UNION ALL
        SELECT 4, f.failed_at, 'attempt failed', f.queue_name,
               jsonb_build_object('actor', f.handled_by, 'attempt', f.attempt, 'error', f.failure ->> 'error',
                                  'details', CASE WHEN f.reads THEN left(f.failure ->> 'message', 4000) END,
                                  'traceback', CASE WHEN f.reads THEN f.failure ->> 'traceback' END)
          FROM failed f
        UNION ALL
        SELECT 5, d.ended_at, 'run ended', d.queue_name,
               jsonb_build_object('result', d.result, 'details', CASE WHEN d.reads THEN d.details END, 'dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d WHERE d.ended_at IS NOT NULL
        UNION ALL
        -- The time of a release without an error is not recorded: this is when the message was, or will be, ready again.
        SELECT 6, CASE WHEN w.visible_at < 'infinity' AND w.lock_expires_at IS NULL
                       THEN greatest(w.visible_at, w.leased_at, (SELECT max(f.failed_at) FROM failed f)) ELSE w.leased_at END,
               CASE WHEN w.visible_at > clock_timestamp() THEN 'waits for its next attempt' ELSE 'ready again' END, w.queue_name,
               jsonb_build_object('attempt', CASE WHEN w.lock_expires_at IS NULL THEN w.attempts ELSE w.attempts - 1 END,
                                  'error', CASE WHEN EXISTS (SELECT FROM failed) THEN NULL WHEN w.reads THEN ltrim(w.last_error)
                                                ELSE substring(w.last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END,
                                  'until', CASE WHEN w.visible_at > clock_timestamp() THEN nullif(w.visible_at, 'infinity') END)
          FROM waiting w WHERE w.last_error IS NOT NULL AND (w.lock_expires_at IS NULL OR NOT EXISTS (SELECT FROM failed))
        UNION ALL
        SELECT 7, f.archived_at, 'archived', f.queue_name,
               jsonb_build_object('actor', f.handled_by, 'attempt', f.attempts, 'result', f.result, 'error', f.failure ->> 'error',
                                  'details', CASE WHEN f.reads THEN coalesce(f.details, left(f.failure ->> 'message', 4000)) END,
                                  'traceback', CASE WHEN f.reads THEN f.failure ->> 'traceback' END)
          FROM finished f
        UNION ALL
        SELECT 8, NULL, 'leased for a resolution', d.queue_name, jsonb_build_object('actor', d.locked_by, 'until', d.lock_expires_at)
          FROM messages.dead_message d CROSS JOIN reach r
         WHERE d.id = message_life.message_id AND d.lock_expires_at > clock_timestamp() AND (r.everything OR d.queue_name = ANY (r.queue_names))
        UNION ALL
        SELECT 9, f.resolved_at, f.resolution, f.queue_name,
               jsonb_build_object('actor', f.resolved_by, 'details', f.dismissed_for, 'other_id', f.requeued_as)
          FROM finished f WHERE f.resolution IS NOT NULL)
    SELECT l.at, l.entry, l.queue_name, s.*
      FROM life l CROSS JOIN LATERAL jsonb_to_record(l.facts)
        AS s (actor text, attempt integer, result text, error text, details text, until timestamptz, other_id bigint, dag_id text, run_id text,
              reference text, traceback text)
     ORDER BY l.at NULLS LAST, l.place;
END $$;
COMMENT ON FUNCTION messages.message_life IS
    'What is recorded of one message, in the order of time and without its body: published, or published again for other_id; delayed; each attempt, leased by actor, and how it failed; dispatched to a run; archived; requeued as other_id, or dismissed. No row for a message that is unknown, or in a queue that this login may not observe. Of an error, only whoever may read the bodies sees more than its class. Earlier attempts are known for 30 days; one whose lease ended is missing. Runs are known for 30 days after their end.'
    ' [for: observer]';

CREATE OR REPLACE FUNCTION messages.search_messages(
    queue_name   text        DEFAULT NULL,
    reference    text        DEFAULT NULL,
    state        text        DEFAULT NULL,
    fingerprint  text        DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL,
    max_messages integer     DEFAULT 100,
    message_id   bigint      DEFAULT NULL,
    after_id     bigint      DEFAULT NULL,
    after_place  timestamptz DEFAULT NULL
) RETURNS TABLE (id bigint, message_queue text, message_state text, at timestamptz, ends_at timestamptz, created_at timestamptz, attempts integer, worker text,
                 message_reference text, message_topic text, cause text, error text, resolution text, place timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    -- How a list of one state is read. Each walk ends after a number of messages, whether they match or not.
    waits    CONSTANT boolean := search_messages.state IN ('ready', 'delayed', 'leased');
    ended    CONSTANT boolean := NOT coalesce(waits, true) OR search_messages.fingerprint IS NOT NULL;
    later    CONSTANT boolean := coalesce(search_messages.state IN ('delayed', 'leased'), false);
    by_key   CONSTANT boolean := coalesce(search_messages.message_id::text, search_messages.reference) IS NOT NULL;
    of_dead  CONSTANT boolean := search_messages.state = 'dead' AND NOT by_key;
    in_time  CONSTANT text    := 'archived_at >= coalesce($6, ''-infinity'') AND archived_at <= coalesce(least($7, $4), ''infinity'')';
    lanes    boolean;                      -- along the order of each priority of each queue that is named, or that this login reaches
    by_time  boolean;
    source   text;
    waiting  text;
    archived text;
    names    text[];
    reach    messages.session_reach;
BEGIN
    PERFORM messages.check_number('max_messages', search_messages.max_messages, 1, 10000, required => true),
            messages.check_choice('state', search_messages.state,
                                  '{ready,delayed,leased,done,dead,success,failed,rejected,lock_expired,expired,cancelled}');
    PERFORM messages.check_queue(search_messages.queue_name, 'observe') WHERE search_messages.queue_name IS NOT NULL;
    IF ended AND waits THEN
        RETURN;
    END IF;
    SELECT r.* INTO reach FROM messages.session_reach r;
    names := CASE WHEN search_messages.queue_name IS NOT NULL THEN ARRAY[search_messages.queue_name]
                  WHEN NOT reach.everything THEN reach.queue_names END;
    lanes := names IS NOT NULL AND NOT by_key;

    -- The parameters of both queries: $1 now, $2 queues, $3 reference, $4 after_place, $5 fingerprint, $6 since, $7 until, $8 max_messages,
    -- $9 and $10 whose bodies this login may read, $11 message_id, $12 after_id.
    -- Unfinished: by id, by reference, along the order of each priority, or the newest ids.
    IF NOT ended THEN
        source := CASE
            WHEN search_messages.message_id IS NOT NULL THEN 'SELECT m.* FROM messages.message_rows m WHERE m.id = $11'
            WHEN search_messages.reference IS NOT NULL THEN 'SELECT m.* FROM messages.message_rows m WHERE m.reference = $3 LIMIT 100000'
            WHEN lanes THEN format(
                'SELECT m.* FROM messages.message_rows m
                  WHERE m.queue_name = q.name AND m.priority = p.priority AND %s ORDER BY m.visible_at %s LIMIT 10000',
                CASE search_messages.state WHEN 'delayed' THEN 'm.visible_at > $1 AND ($4 IS NULL OR m.visible_at >= $4)'
                                           WHEN 'leased' THEN 'm.visible_at <= $1 AND ($4 IS NULL OR m.visible_at >= $4)'
                                           WHEN 'ready' THEN 'm.visible_at <= least($1, $4)' ELSE 'true' END,
                CASE WHEN later THEN 'ASC' ELSE 'DESC' END)
            ELSE 'SELECT m.* FROM messages.message_rows m WHERE $12 IS NULL OR m.id < $12 ORDER BY m.id DESC LIMIT 100000' END;
        waiting := format($query$
            SELECT m.id, m.queue_name, CASE WHEN m.lock_expires_at > $1 THEN 'leased' WHEN m.visible_at = 'infinity' THEN 'behind'
                                            WHEN m.visible_at > $1 THEN 'delayed' ELSE 'ready' END,
                   CASE WHEN m.lock_expires_at > $1 THEN m.leased_at WHEN m.visible_at > $1 THEN m.created_at ELSE m.visible_at END AS at,
                   CASE WHEN m.lock_expires_at > $1 THEN m.lock_expires_at
                        WHEN m.visible_at > $1 THEN nullif(m.visible_at, 'infinity') END,
                   m.created_at, m.attempts::integer, m.locked_by, m.reference, m.topic, NULL,
                   CASE WHEN $9 OR m.queue_name = ANY ($10) THEN ltrim(m.last_error)
                        ELSE substring(m.last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END, NULL, least(m.visible_at, '9999-12-31') AS place
              FROM (%s) m
             WHERE ($2 IS NULL OR m.queue_name = ANY ($2))
               AND ($3 IS NULL OR m.reference = $3)
               AND ($6 IS NULL OR m.created_at >= $6) AND ($7 IS NULL OR m.created_at < $7) AND %s AND %s
             ORDER BY %s LIMIT $8 $query$, source,
            CASE search_messages.state WHEN 'leased' THEN 'm.lock_expires_at > $1'
                                       WHEN 'ready' THEN 'coalesce(m.lock_expires_at <= $1, true) AND m.visible_at <= $1'
                                       WHEN 'delayed' THEN 'coalesce(m.lock_expires_at <= $1, true) AND m.visible_at > $1' ELSE 'true' END,
            CASE WHEN search_messages.after_id IS NULL THEN 'true' WHEN NOT lanes OR NOT waits THEN 'm.id < $12'
                 WHEN later THEN '(least(m.visible_at, ''9999-12-31''), m.id) > ($4, $12)' ELSE '(m.visible_at, m.id) < ($4, $12)' END,
            CASE WHEN NOT lanes THEN 'm.id DESC' WHEN later THEN 'm.visible_at, m.id' ELSE 'm.visible_at DESC, m.id DESC' END);
        IF lanes THEN
            waiting := format('SELECT m.* FROM unnest($2) AS q (name) CROSS JOIN generate_series(9, 0, -1) AS p (priority)
                                CROSS JOIN LATERAL (%s) m ORDER BY %s LIMIT $8', waiting,
                              CASE WHEN later THEN 'm.place, m.id' ELSE 'm.place DESC, m.id DESC' END);
        END IF;
    END IF;

    -- Finished: by id, by reference, from the list of the dead, by cause, in a time, or the newest ids.
    IF NOT coalesce(waits, false) THEN
        by_time := NOT by_key
                   AND CASE WHEN of_dead THEN names IS NOT NULL AND search_messages.fingerprint IS NULL
                            ELSE coalesce(search_messages.fingerprint, search_messages.since::text, search_messages.until::text) IS NOT NULL END;
        source := CASE
            WHEN search_messages.message_id IS NOT NULL THEN 'SELECT a.* FROM messages.archive_rows a WHERE a.id = $11'
            WHEN search_messages.reference IS NOT NULL THEN 'SELECT a.* FROM messages.archive_rows a WHERE a.reference = $3 LIMIT 100000'
            WHEN of_dead THEN format(
                'SELECT d.id AS dead_id, d.archived_at AS died_at, a.*
                   FROM %s
                  CROSS JOIN LATERAL (
                    SELECT d.id, d.archived_at FROM messages.dead_message d
                     WHERE %s AND ($5 IS NULL OR d.fingerprint = $5) AND %s ORDER BY %s LIMIT 10000) d
                  CROSS JOIN LATERAL (SELECT a.* FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at OFFSET 0) a',
                CASE WHEN cardinality(names) > 1 THEN 'unnest($2) AS q (name)' ELSE '(VALUES ($2[1])) AS q (name)' END,
                CASE WHEN names IS NULL THEN 'true' ELSE 'd.queue_name = q.name' END,
                CASE WHEN by_time THEN in_time ELSE '($12 IS NULL OR d.id < $12)' END,
                CASE WHEN by_time THEN 'd.archived_at DESC, d.id DESC' ELSE 'd.id DESC' END)
            WHEN search_messages.fingerprint IS NOT NULL THEN
                'SELECT a.* FROM messages.archive_rows a WHERE a.fingerprint = $5 AND a.archived_at <= coalesce(least($7, $4), ''infinity'')
                  ORDER BY a.archived_at DESC LIMIT 100000'
            WHEN by_time THEN 'SELECT a.* FROM messages.archive_rows a WHERE ' || in_time
            ELSE 'SELECT a.* FROM messages.archive_rows a WHERE $12 IS NULL OR a.id < $12 ORDER BY a.id DESC LIMIT 100000' END;
        archived := format($query$
            SELECT a.id, a.queue_name, a.result, a.archived_at AS at, NULL::timestamptz, a.created_at, a.attempts::integer, a.handled_by, a.reference, a.topic,
                   a.fingerprint,
                   nullif(CASE WHEN $9 OR a.queue_name = ANY ($10) THEN concat_ws(': ', a.failure ->> 'error', left(coalesce(a.failure ->> 'message', a.details), 500))
                        ELSE a.failure ->> 'error' END, ''), a.resolution,
                   a.archived_at AS place
              FROM (%s) a
             WHERE ($2 IS NULL OR a.queue_name = ANY ($2))
               AND ($3 IS NULL OR a.reference = $3)
               AND ($5 IS NULL OR a.fingerprint = $5)
               AND ($6 IS NULL OR a.archived_at >= $6) AND ($7 IS NULL OR a.archived_at < $7) AND %s AND %s
             ORDER BY %s LIMIT $8 $query$, source,
            CASE search_messages.state WHEN 'done' THEN '(a.result IN (''success'', ''cancelled'') OR a.resolution IS NOT NULL)'
                                       WHEN 'dead' THEN 'a.result NOT IN (''success'', ''cancelled'') AND a.resolution IS NULL'
                                       ELSE coalesce('a.result = ' || quote_literal(search_messages.state), 'true') END,
            CASE WHEN search_messages.after_id IS NULL THEN 'true' WHEN by_time THEN '(a.archived_at, a.id) < ($4, $12)' ELSE 'a.id < $12' END,
            CASE WHEN of_dead THEN CASE WHEN by_time THEN 'a.died_at DESC, a.dead_id DESC' ELSE 'a.dead_id DESC' END
                 WHEN by_time THEN 'a.archived_at DESC, a.id DESC' ELSE 'a.id DESC' END);
    END IF;
    RETURN QUERY EXECUTE CASE WHEN waiting IS NULL THEN archived WHEN archived IS NULL THEN waiting
                              ELSE format('SELECT f.* FROM ((%s) UNION ALL (%s)) f ORDER BY f.at DESC, f.id DESC LIMIT $8', waiting, archived) END
      USING moment, names, search_messages.reference, search_messages.after_place, search_messages.fingerprint, search_messages.since,
            search_messages.until, search_messages.max_messages, reach.bodies, reach.body_queues, search_messages.message_id, search_messages.after_id;
END $$;
COMMENT ON FUNCTION messages.search_messages IS
    'Messages, unfinished and archived, without bodies, and of errors only the class, unless this login may read the bodies; a NULL argument matches any message. state is ready, delayed (also: behind an earlier message of its group), leased, done, dead (and open) or a result. A list of one state begins with the newest message; in a named queue, or for a limited login, leased and delayed messages come in the order of visible_at. The list continues after the id and place of its last row. at is the time since which a message is ready, leased, archived, or waits; ends_at is the end of its lease or delay. since and until limit the time of publish, or for finished messages the time of archive. An id, reference or cause is found through an index. Any other search reads up to 10,000 unfinished messages of each priority of a queue (in all queues, the newest 100,000), the newest 10,000 dead messages, and the newest 100,000 of the archive, or with since or until the archive of that time. PQ001: unknown queue; PQ004: bad argument.'
    ' [for: observer]';

CREATE OR REPLACE FUNCTION messages.archive_log_end(after_removal bigint DEFAULT 0, queue_names text[] DEFAULT NULL)
RETURNS TABLE (system text, horizon bigint, removals bigint, gone_before_xid bigint, gone_until timestamptz,
               holder_pid integer, holder_application text, holder_age interval)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH log AS MATERIALIZED (SELECT clock_timestamp() AS moment, pg_snapshot_xmin(pg_current_snapshot()) AS horizon),
    -- The oldest transaction that writes, of any database; one that only reads holds nothing back.
    holder AS (
        SELECT a.pid, a.application_name AS application, log.moment - a.xact_start AS age
          FROM log JOIN pg_stat_activity a ON a.backend_xid = log.horizon::xid
        UNION ALL
        SELECT NULL, 'prepared transaction ' || left(p.gid, 100), log.moment - p.prepared
          FROM log JOIN pg_prepared_xacts p ON p.transaction = log.horizon::xid
         LIMIT 1)
    SELECT c.system_identifier || '/' || d.oid, log.horizon::text::bigint, p.removals,
           coalesce(gone.before_xid, 0), gone.until, holder.pid, holder.application, holder.age
      FROM log CROSS JOIN pg_control_system() c
      JOIN pg_database d ON d.datname = current_database()
     CROSS JOIN messages.archive_policy p
     CROSS JOIN (SELECT max(r.before_xid) AS before_xid, max(r.archived_at) AS until FROM messages.archive_removal r
                  WHERE r.number > coalesce(after_removal, 0) AND (queue_names IS NULL OR r.queue_name = ANY (queue_names))) gone
      LEFT JOIN holder ON true
$$;
COMMENT ON FUNCTION messages.archive_log_end IS
    'Where the archive as a log ends now: all transactions before the horizon have ended, so everything that they archived can be read, and nothing can appear before it later. Also returns the cluster and database, the number of the last removal of messages, what the removals after after_removal took from these queues (before which place, and archived until when), and the transaction that holds the horizon back.'
    ' [for: reader]';

CREATE OR REPLACE FUNCTION messages.split_archive_log(
    from_xid bigint, before_xid bigint, max_messages integer DEFAULT NULL, max_steps integer DEFAULT 1000,
    queue_names text[] DEFAULT NULL
) RETURNS TABLE (xid bigint, messages bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    one   record;
    steps integer := 0;
    place bigint := from_xid;
    until bigint;
    width bigint := 20000;
BEGIN
    PERFORM messages.check_number('max_steps', max_steps, 1, 10000, required => true);
    PERFORM messages.check_number('max_messages', max_messages, 1, 2147483647);
    PERFORM messages.check_number('from_xid', from_xid, 0, 1000000000000000000), messages.check_number('before_xid', before_xid, 0, 1000000000000000000);
    messages := 0;
    -- The log is counted in windows, so that the first steps of a long backlog do not count all of it.
    WHILE place < before_xid LOOP
        until := least(before_xid, place + width);
        width := width * 4;
        FOR one IN
            SELECT a.xid, count(*) AS messages FROM messages.archive_rows a
             WHERE a.xid >= place AND a.xid < until AND (queue_names IS NULL OR a.queue_name = ANY (queue_names))
             GROUP BY a.xid ORDER BY a.xid
        LOOP
            IF messages > 0 AND messages + one.messages > max_messages THEN
                xid := one.xid;
                RETURN NEXT;
                messages := 0;
                steps := steps + 1;
                IF steps >= max_steps THEN
                    RETURN;
                END IF;
            END IF;
            messages := messages + one.messages;
            width := 20000;
        END LOOP;
        place := until;
    END LOOP;
    IF messages > 0 THEN
        xid := before_xid;
        RETURN NEXT;
    END IF;
END $$;
COMMENT ON FUNCTION messages.split_archive_log IS
    'Splits a range of the archive as a log into steps of whole transactions, of up to max_messages of these queues each (more only if one transaction archived more). A step is given by the transaction before which it ends; the last one ends where the range does, and an empty range has none. PQ004: bad argument.'
    ' [for: reader]';
