-- Dead messages: lease them, then requeue or dismiss them.
--
-- A message is dead if it was archived with any result but success and cancelled. It is on a list, messages.dead_message, until it
-- is resolved: requeue publishes it again under a new id, dismiss closes it with a reason. Both need a lease of the dead message,
-- so that two people cannot resolve it at once. requeue_dead and dismiss_dead lease and resolve in one call.
--
-- dead_causes counts dead messages by fingerprint, dead_trend also by time. retried_causes counts failed attempts of messages that
-- are not finished.
--
-- Tables: dead_message, failed_attempt.

CREATE OR REPLACE FUNCTION messages.lease_dead(
    queue_name   text     DEFAULT NULL,
    max_messages integer  DEFAULT 100,
    lease_for    interval DEFAULT '5 minutes',
    locked_by    text     DEFAULT NULL,
    results      text[]   DEFAULT NULL,
    fingerprints text[]   DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    max_requeues integer  DEFAULT NULL,
    reference    text     DEFAULT NULL,
    topic        text     DEFAULT NULL,
    headers      jsonb    DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF messages.leased_dead_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    token   uuid := gen_random_uuid();
    missing bigint := 0;
    passed  bigint;
    pattern text := messages.topic_regex(lease_dead.topic);
    -- The list of dead messages has neither topic nor headers: the archive has them.
    filtered boolean := coalesce(lease_dead.topic, lease_dead.headers::text) IS NOT NULL;
BEGIN
    PERFORM messages.check_headers(lease_dead.headers), messages.check_dead_lease(lease_dead.queue_name, lease_dead.results, lease_dead.max_requeues),
            messages.check_number('max_messages', lease_dead.max_messages, 1, 10000, required => true),
            messages.check_duration('lease_for', lease_dead.lease_for, '1 millisecond', '12 hours');
    -- A NULL from a query that found nothing must not stand for all queues.
    IF lease_dead.queue_name IS NULL
       AND coalesce(lease_dead.ids::text, lease_dead.fingerprints::text, lease_dead.reference) IS NULL THEN
        RAISE EXCEPTION 'queue_name is NULL'
            USING ERRCODE = 'PQ004', HINT = 'Name a queue, or messages by ids, fingerprints or reference.';
    END IF;
    LOOP
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT d.id FROM messages.dead_message d
             WHERE (lease_dead.queue_name IS NULL OR d.queue_name = lease_dead.queue_name COLLATE "default")
               AND (lease_dead.results IS NULL OR d.result = ANY (lease_dead.results))
               AND (lease_dead.fingerprints IS NULL OR d.fingerprint = ANY (lease_dead.fingerprints))
               AND (lease_dead.ids IS NULL OR d.id = ANY (lease_dead.ids))
               AND (lease_dead.max_requeues IS NULL OR d.requeues < lease_dead.max_requeues)
               AND (lease_dead.since IS NULL OR d.archived_at >= lease_dead.since)
               AND (lease_dead.until IS NULL OR d.archived_at < lease_dead.until)
               -- An index finds the few messages with a reference; the list of dead messages may have a million.
               AND (lease_dead.reference IS NULL OR d.id = ANY (ARRAY(
                    SELECT a.id FROM messages.archive_rows a WHERE a.reference = lease_dead.reference)))
               AND (NOT filtered OR EXISTS (
                    SELECT FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at
                       AND (pattern IS NULL OR '.' || a.topic ~ pattern)
                       AND (lease_dead.headers IS NULL OR a.headers @> lease_dead.headers)))
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= moment)
             ORDER BY d.archived_at LIMIT lease_dead.max_messages FOR UPDATE SKIP LOCKED),
        leased AS (
            UPDATE messages.dead_message d
               SET lock_expires_at = moment + coalesce(lease_dead.lease_for, '5 minutes'), lock_token = token,
                   locked_by = coalesce(lease_dead.locked_by, session_user)
              FROM picked p WHERE d.id = p.id
            RETURNING d.id, d.archived_at, d.lock_token, d.lock_expires_at)
        SELECT a.id, a.queue_name, a.result, a.details, a.failure, a.message, a.headers, a.reference, a.topic, a.group_key, a.attempts,
               a.requeues, a.created_at, a.archived_at, a.handled_by, l.lock_token, l.lock_expires_at
          FROM leased l JOIN messages.archive_rows a ON a.id = l.id AND a.archived_at = l.archived_at
         ORDER BY a.archived_at, a.id;
        EXIT WHEN FOUND;
        -- A dead message whose archived row is gone, with a partition that somebody detached, must not hold up the others:
        -- it stays leased, and the next dead messages are tried.
        passed := missing;
        SELECT count(*) INTO missing FROM messages.dead_message d WHERE d.lock_token = token;
        EXIT WHEN missing = passed;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease_dead IS
    'Leases open dead messages under one fresh lock_token, oldest first; only those that were requeued fewer than max_requeues times, have this reference, a topic that matches the pattern and headers that contain these, and died at since or later and before until. NULL stands for any, but without a queue_name it takes ids, fingerprints or a reference. PQ001: unknown queue; PQ004: bad argument.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.check_dead_lease(queue_name text, results text[], max_requeues integer) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_access(check_dead_lease.queue_name, 'consume');
    PERFORM messages.check_queue(check_dead_lease.queue_name, 'consume') WHERE check_dead_lease.queue_name IS NOT NULL;
    PERFORM messages.check_number('max_requeues', max_requeues, 0, 32767);
    IF NOT results <@ ARRAY['failed', 'rejected', 'lock_expired', 'expired'] THEN
        RAISE EXCEPTION 'results are %', left(results::text, 200)
            USING ERRCODE = 'PQ004', HINT = 'Give some of failed, rejected, lock_expired, expired.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_dead_lease IS
    'Raises 42501, PQ001 or PQ004 for a bad choice of dead messages.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.extend_dead(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('lease_for', extend_dead.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    UPDATE messages.dead_message d SET lock_expires_at = clock_timestamp() + coalesce(extend_dead.lease_for, '5 minutes')
     WHERE d.id = ANY (extend_dead.ids) AND d.lock_token = extend_dead.lock_token AND d.lock_expires_at > clock_timestamp()
    RETURNING d.id;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.extend_dead IS
    'Makes leases of dead messages end lease_for from now, and returns the ids; an id that is missing was lost. PQ004: bad duration; PQ016: another transaction has a dead message of this lease for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.release_dead(lock_token uuid, ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE messages.dead_message d SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL
     WHERE d.id = ANY (release_dead.ids) AND d.lock_token = release_dead.lock_token AND d.lock_expires_at > clock_timestamp()
    RETURNING d.id;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.release_dead IS
    'Gives leased dead messages back, still open, and returns the ids; an id that is missing was lost. PQ016: another transaction has a dead message of this lease for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.requeue(
    lock_token  uuid,
    ids         bigint[],
    messages    jsonb    DEFAULT NULL,
    delay       interval DEFAULT '0',
    resolved_by text     DEFAULT NULL
) RETURNS TABLE (id bigint, new_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('delay', requeue.delay, '0', '366 days');
    PERFORM messages.check_length('resolved_by', requeue.resolved_by, 0, 600);     -- what fits into an index, of characters of any length
    LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;      -- in the order of drop_queue
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (requeue.ids) AND d.lock_token = requeue.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by),
    published AS (
        INSERT INTO messages.message AS m (queue_name, message, priority, visible_at, headers, reference, topic, group_key,
                                            requeued_from, requeues)
        SELECT a.queue_name, coalesce(requeue.messages -> a.id::text, a.message), a.priority,
               clock_timestamp() + coalesce(requeue.delay, '0'), a.headers, a.reference, a.topic, a.group_key, a.id, least(a.requeues + 1, 32767)
          FROM mine JOIN messages.archive_rows a ON a.id = mine.id AND a.archived_at = mine.archived_at
         ORDER BY a.id
        RETURNING m.id AS new_id, m.requeued_from)
    UPDATE messages.archive_rows a
       SET resolution = 'requeued', resolved_at = clock_timestamp(), requeued_as = p.new_id,
           resolved_by = coalesce(requeue.resolved_by, left(mine.locked_by, 600))
      FROM mine JOIN published p ON p.requeued_from = mine.id
     WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id, a.requeued_as;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.requeue IS
    'Publishes leased dead messages again under new ids, with a new body where messages {"id": body} has one, and records it in the archive. An id that is missing was lost. PQ004: bad delay or resolved_by; PQ016: another transaction has a dead message of this lease for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.dismiss(lock_token uuid, ids bigint[], reason text, resolved_by text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    dismissed record;
    entered   bigint[];
BEGIN
    IF coalesce(btrim(dismiss.reason), '') = '' THEN
        RAISE EXCEPTION 'reason is empty' USING ERRCODE = 'PQ004', HINT = 'Say why nothing more has to be done.';
    END IF;
    PERFORM messages.check_length('resolved_by', dismiss.resolved_by, 0, 600);     -- what fits into an index, of characters of any length
    LOCK TABLE messages.message_rows IN ROW EXCLUSIVE MODE;      -- in the order of drop_queue
    FOR dismissed IN
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (dismiss.ids) AND d.lock_token = dismiss.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by)
    UPDATE messages.archive_rows a
       SET resolution = 'dismissed', resolved_at = clock_timestamp(), dismissed_for = left(dismiss.reason, 4000),
           resolved_by = coalesce(dismiss.resolved_by, left(mine.locked_by, 600))
      FROM mine WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id, a.queue_name, a.group_key
    LOOP
        -- A dismissed message no longer blocks its group.
        IF dismissed.group_key IS NOT NULL THEN
            entered := messages.next_of_groups(dismissed.queue_name, ARRAY[dismissed.group_key], '{}');
            IF entered <> '{}' THEN
                PERFORM messages.notify_for(dismissed.queue_name, dismissed.id);
            END IF;
        END IF;
        RETURN NEXT dismissed.id;
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.dismiss IS
    'Closes leased dead messages without publishing them again, records the reason in the archive, and returns the ids; an id that is missing was lost. PQ004: no reason, or bad resolved_by; PQ016: another transaction has a dead message of this lease for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.requeue_dead(
    queue_name   text     DEFAULT NULL,
    max_messages integer  DEFAULT 1000,
    results      text[]   DEFAULT NULL,
    max_requeues integer  DEFAULT NULL,
    delay        interval DEFAULT '0',
    resolved_by  text     DEFAULT NULL,
    fingerprints text[]   DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    reference    text     DEFAULT NULL,
    topic        text     DEFAULT NULL,
    headers      jsonb    DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL,
    messages     jsonb    DEFAULT NULL
) RETURNS TABLE (id bigint, new_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    token uuid;
    taken bigint[];
    done  bigint;
BEGIN
    SELECT min(d.lock_token::text)::uuid, array_agg(d.id)
      INTO token, taken
      FROM messages.lease_dead(requeue_dead.queue_name, requeue_dead.max_messages, '1 minute', requeue_dead.resolved_by,
                               coalesce(requeue_dead.results, CASE WHEN coalesce(requeue_dead.fingerprints::text, requeue_dead.ids::text) IS NULL
                                                                   THEN ARRAY['failed', 'lock_expired'] END),
                               requeue_dead.fingerprints, requeue_dead.ids, requeue_dead.max_requeues,
                               requeue_dead.reference, requeue_dead.topic, requeue_dead.headers, requeue_dead.since, requeue_dead.until) d;
    RETURN QUERY SELECT r.id, r.new_id FROM messages.requeue(token, taken, requeue_dead.messages, requeue_dead.delay, requeue_dead.resolved_by) r;
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM messages.record_audit('requeue_dead', requeue_dead.queue_name, jsonb_build_object(
        'results', requeue_dead.results, 'fingerprints', requeue_dead.fingerprints, 'ids', requeue_dead.ids,
        'max_requeues', requeue_dead.max_requeues, 'delay', nullif(requeue_dead.delay, '0'), 'reference', requeue_dead.reference,
        'topic', requeue_dead.topic, 'since', requeue_dead.since, 'until', requeue_dead.until,
        'new_bodies', (SELECT nullif(count(*), 0) FROM jsonb_object_keys(requeue_dead.messages))), done) WHERE done > 0;
END $$;
COMMENT ON FUNCTION messages.requeue_dead IS
    'Leases dead messages and requeues them in one call, with a new body where messages {"id": body} has one; without results, fingerprints and ids, those that ended as failed or lock_expired. Leaves out messages that have already been requeued max_requeues times. The filters and errors are those of lease_dead. The audit gets an entry for each call that requeues something, with the number of new bodies, but no body.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.dismiss_dead(
    queue_name   text        DEFAULT NULL,
    reason       text        DEFAULT NULL,
    max_messages integer     DEFAULT 1000,
    results      text[]      DEFAULT NULL,
    fingerprints text[]      DEFAULT NULL,
    ids          bigint[]    DEFAULT NULL,
    resolved_by  text        DEFAULT NULL,
    max_requeues integer     DEFAULT NULL,
    reference    text        DEFAULT NULL,
    topic        text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    token uuid;
    taken bigint[];
    done  bigint;
BEGIN
    SELECT min(d.lock_token::text)::uuid, array_agg(d.id)
      INTO token, taken
      FROM messages.lease_dead(dismiss_dead.queue_name, dismiss_dead.max_messages, '1 minute', dismiss_dead.resolved_by,
                               dismiss_dead.results, dismiss_dead.fingerprints, dismiss_dead.ids, dismiss_dead.max_requeues,
                               dismiss_dead.reference, dismiss_dead.topic, dismiss_dead.headers, dismiss_dead.since, dismiss_dead.until) d;
    RETURN QUERY SELECT messages.dismiss(token, taken, dismiss_dead.reason, dismiss_dead.resolved_by);
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM messages.record_audit('dismiss_dead', dismiss_dead.queue_name, jsonb_build_object(
        'reason', left(dismiss_dead.reason, 500), 'results', dismiss_dead.results, 'fingerprints', dismiss_dead.fingerprints,
        'ids', dismiss_dead.ids, 'max_requeues', dismiss_dead.max_requeues, 'reference', dismiss_dead.reference,
        'topic', dismiss_dead.topic, 'since', dismiss_dead.since, 'until', dismiss_dead.until), done) WHERE done > 0;
END $$;
COMMENT ON FUNCTION messages.dismiss_dead IS
    'Leases dead messages and dismisses them in one call, and returns their ids. The filters and errors are those of lease_dead and dismiss. The audit gets an entry for each call that dismisses something.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.dead_ids(
    queue_name   text    DEFAULT NULL,
    results      text[]  DEFAULT NULL,
    fingerprints text[]  DEFAULT NULL,
    max_messages integer DEFAULT NULL,
    max_requeues integer DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    reference    text    DEFAULT NULL,
    topic        text    DEFAULT NULL,
    headers      jsonb   DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    pattern text := messages.topic_regex(dead_ids.topic);
    -- The list of dead messages has neither topic nor headers: the archive has them.
    filtered boolean := coalesce(dead_ids.topic, dead_ids.headers::text) IS NOT NULL;
BEGIN
    PERFORM messages.check_headers(dead_ids.headers), messages.check_dead_lease(dead_ids.queue_name, dead_ids.results, dead_ids.max_requeues),
            messages.check_number('max_messages', dead_ids.max_messages, 1, 10000000);
    RETURN QUERY
    SELECT d.id FROM messages.dead_message d
     WHERE (dead_ids.queue_name IS NULL OR d.queue_name = dead_ids.queue_name COLLATE "default")
       AND (dead_ids.results IS NULL OR d.result = ANY (dead_ids.results))
       AND (dead_ids.fingerprints IS NULL OR d.fingerprint = ANY (dead_ids.fingerprints))
       AND (dead_ids.ids IS NULL OR d.id = ANY (dead_ids.ids))
       AND (dead_ids.max_requeues IS NULL OR d.requeues < dead_ids.max_requeues)
       AND (dead_ids.since IS NULL OR d.archived_at >= dead_ids.since)
       AND (dead_ids.until IS NULL OR d.archived_at < dead_ids.until)
       -- An index finds the few messages with a reference; the list of dead messages may have a million.
       AND (dead_ids.reference IS NULL OR d.id = ANY (ARRAY(
            SELECT a.id FROM messages.archive_rows a WHERE a.reference = dead_ids.reference)))
       AND (NOT filtered OR EXISTS (
            SELECT FROM messages.archive_rows a WHERE a.id = d.id AND a.archived_at = d.archived_at
               AND (pattern IS NULL OR '.' || a.topic ~ pattern)
               AND (dead_ids.headers IS NULL OR a.headers @> dead_ids.headers)))
     ORDER BY d.archived_at, d.id LIMIT dead_ids.max_messages;
END $$;
COMMENT ON FUNCTION messages.dead_ids IS
    'The ids of open dead messages, oldest first, including leased ones; only those that were requeued fewer than max_requeues times, have this reference, a topic that matches the pattern and headers that contain these, and died at since or later and before until. PQ001: unknown queue; PQ004: bad argument.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.dead_queues(queue_names text[] DEFAULT NULL)
RETURNS TABLE (queue_name text, result text, waiting bigint, newest_id bigint, oldest_age interval, newest_age interval, causes jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.queue_name, c.result, sum(c.waiting)::bigint, max(c.newest_id), clock_timestamp() - min(c.first_at), clock_timestamp() - max(c.last_at),
           jsonb_agg(jsonb_build_object(
               'result', c.result, 'fingerprint', c.fingerprint, 'waiting', c.waiting,
               'first_at', to_char(c.first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'last_at', to_char(c.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               'newest_id', c.newest_id) ORDER BY c.place) FILTER (WHERE c.place <= 1000)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at, max(d.archived_at) AS last_at,
                   max(d.id) AS newest_id,
                   row_number() OVER (PARTITION BY d.queue_name, d.result ORDER BY count(*) DESC, max(d.id) DESC) AS place
              FROM messages.dead_message d
             WHERE (queue_names IS NULL OR d.queue_name = ANY (queue_names))
               AND ((SELECT r.everything FROM messages.session_reach r)
                    OR d.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     GROUP BY c.queue_name, c.result
$$;
COMMENT ON FUNCTION messages.dead_queues IS
    'The queues with open dead messages that are not leased, by result; causes has the fingerprints of each with the newest id, the most frequent first, at most a thousand. Unknown names are left out.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.dead_causes(queue_name text DEFAULT NULL)
RETURNS TABLE (cause_queue text, result text, fingerprint text, waiting bigint, first_at timestamptz, last_at timestamptz,
               newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r)
    SELECT c.queue_name, c.result, c.fingerprint, c.waiting, c.first_at, c.last_at, c.newest_id,
           (SELECT coalesce(a.failure ->> 'error', CASE WHEN r.bodies OR a.queue_name = ANY (r.body_queues) THEN left(a.details, 200) END)
              FROM messages.archive_rows a CROSS JOIN reach r
             WHERE a.id = c.newest_id AND a.archived_at >= c.first_at AND a.archived_at <= c.last_at)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at,
                   max(d.archived_at) AS last_at, max(d.id) AS newest_id
              FROM messages.dead_message d CROSS JOIN reach r
             WHERE (dead_causes.queue_name IS NULL OR d.queue_name = dead_causes.queue_name COLLATE "default")
               AND (r.everything OR d.queue_name = ANY (r.queue_names))
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     ORDER BY c.waiting DESC, c.newest_id;
    IF NOT FOUND AND dead_causes.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_causes.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_causes IS
    'Open dead messages, by queue, result and fingerprint, with the class of the newest error as an example, or its text if this login may read the bodies. PQ001: unknown queue, with no dead message.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.dead_trend(
    queue_name text        DEFAULT NULL,
    since      timestamptz DEFAULT NULL,
    until      timestamptz DEFAULT NULL,
    step       interval    DEFAULT '1 hour',
    max_causes integer     DEFAULT 100
) RETURNS TABLE (cause_queue text, result text, fingerprint text, pattern text, died bigint, waiting bigint, trend text,
                 first_at timestamptz, last_at timestamptz, series_from timestamptz, series_step interval, series bigint[],
                 sample_ids bigint[], sample_references text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    steps record;
    made  record;
BEGIN
    PERFORM messages.check_access(dead_trend.queue_name, 'observe') WHERE dead_trend.queue_name IS NOT NULL;
    PERFORM messages.check_number('max_causes', dead_trend.max_causes, 1, 1000, required => true);
    SELECT * INTO steps FROM messages.history_steps(coalesce(dead_trend.since, coalesce(dead_trend.until, clock_timestamp()) - interval '1 day'),
                                                    dead_trend.until, dead_trend.step);
    -- Whole hours and days are read from the rows of hours and days, which are far fewer.
    SELECT CASE WHEN mod(extract(epoch FROM dead_trend.step), 86400) = 0 THEN greatest(k.since, date_trunc('day', steps.end_at)) ELSE k.since END AS days,
           CASE WHEN mod(extract(epoch FROM dead_trend.step), 3600) = 0 THEN greatest(k.until, date_trunc('hour', steps.end_at)) ELSE k.until END AS hours
      INTO made FROM messages.history_begins() k WHERE k.grain = 'hour';
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    recorded AS MATERIALIZED (
        SELECT h.queue_name, h.result, h.fingerprint, date_bin(dead_trend.step, h.bucket_at, steps.origin) AS at, h.messages
          FROM (VALUES ('minute', made.hours, 'infinity'::timestamptz), ('hour', made.days, made.hours),
                       ('day', '-infinity', made.days)) AS g (grain, from_at, end_at) CROSS JOIN reach r
          JOIN messages.history_cause h
            ON h.grain = g.grain AND h.bucket_at >= greatest(steps.first_at, g.from_at) AND h.bucket_at < least(steps.end_at, g.end_at)
         WHERE (dead_trend.queue_name IS NULL OR h.queue_name = dead_trend.queue_name COLLATE "default")
           AND (r.everything OR h.queue_name = ANY (r.queue_names))),
    cause AS MATERIALIZED (
        SELECT n.queue_name, n.result, n.fingerprint, sum(n.messages)::bigint AS died
          FROM recorded n GROUP BY 1, 2, 3 ORDER BY 4 DESC, 3 LIMIT dead_trend.max_causes),
    series AS (
        SELECT c.queue_name, c.result, c.fingerprint, array_agg(coalesce(s.messages, 0) ORDER BY b.at) AS series
          FROM cause c
         CROSS JOIN generate_series(steps.first_at, steps.end_at - interval '1 microsecond', dead_trend.step) AS b (at)
          LEFT JOIN (SELECT n.queue_name, n.result, n.fingerprint, n.at, sum(n.messages)::bigint AS messages FROM recorded n GROUP BY 1, 2, 3, 4) s
            ON s.queue_name = c.queue_name AND s.result = c.result AND s.fingerprint = c.fingerprint AND s.at = b.at
         GROUP BY 1, 2, 3)
    SELECT c.queue_name, c.result, c.fingerprint, newest.pattern, c.died, w.waiting,
           -- The deaths in the last quarter of the time, compared with a quarter of all deaths.
           CASE WHEN q.late = c.died THEN 'new' WHEN q.late > 1.5 * c.died / 4 THEN 'growing'
                WHEN q.late < 0.5 * c.died / 4 THEN 'fading' ELSE 'steady' END,
           seen.first_at, seen.last_at, steps.first_at, dead_trend.step, s.series, newest.ids, newest.references
      FROM cause c
      JOIN series s ON s.queue_name = c.queue_name AND s.result = c.result AND s.fingerprint = c.fingerprint
     CROSS JOIN LATERAL (
        SELECT coalesce(sum(one.messages), 0) AS late FROM unnest(s.series) WITH ORDINALITY AS one (messages, place)
         WHERE one.place > cardinality(s.series) - greatest(1, cardinality(s.series) / 4)) q
     CROSS JOIN LATERAL (
        SELECT min(ends.first_at) AS first_at, max(ends.last_at) AS last_at FROM kept k CROSS JOIN LATERAL (
            SELECT min(h.bucket_at) AS first_at,
                   max(h.bucket_at) FILTER (WHERE h.bucket_at >= steps.first_at AND h.bucket_at < steps.end_at) AS last_at
              FROM messages.history_cause h
             WHERE h.queue_name = c.queue_name AND h.fingerprint = c.fingerprint AND h.result = c.result
               AND h.grain = k.grain AND h.bucket_at >= k.since AND h.bucket_at < k.until) ends) seen
     CROSS JOIN LATERAL (
        SELECT count(*) AS waiting FROM (
            SELECT FROM messages.dead_message d
             WHERE d.queue_name = c.queue_name AND d.fingerprint = c.fingerprint AND d.result = c.result LIMIT 10000) d) w
     CROSS JOIN LATERAL (
        SELECT array_agg(a.id ORDER BY a.archived_at DESC) AS ids, array_agg(left(a.reference, 200) ORDER BY a.archived_at DESC) AS references,
               (array_agg(left(concat_ws(': ', a.failure ->> 'error', CASE WHEN r.bodies OR a.queue_name = ANY (r.body_queues)
                                                                           THEN messages.error_pattern(a.details, a.failure) END), 500)
                          ORDER BY a.archived_at DESC))[1] AS pattern
          FROM (SELECT a.* FROM messages.archive_rows a
                 WHERE a.fingerprint = c.fingerprint AND a.queue_name = c.queue_name AND a.result = c.result
                   AND a.archived_at >= steps.first_at AND a.archived_at < steps.end_at + interval '1 day'
                 ORDER BY a.archived_at DESC LIMIT 5) a CROSS JOIN reach r) newest
     ORDER BY c.died DESC, c.fingerprint;
    IF NOT FOUND AND dead_trend.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_trend.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_trend IS
    'The causes of death from since (a day ago) to until (now), most deaths first: how many messages died in each step, how many are open now (counted up to 10000), when the cause was first and last seen, to the minute, the class and text of its errors with # for numbers and ? for quotations (only the class, unless this login may read the bodies), and the newest messages. trend: new (only in the last quarter), growing, steady or fading. The fingerprint other stands for all but the twenty most frequent causes of a queue in a minute. PQ001: unknown queue, without a death in this time; PQ004: bad step, or too many.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.retried_causes(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL, max_causes integer DEFAULT 100)
RETURNS TABLE (cause_queue text, fingerprint text, waiting bigint, attempts bigint, first_at timestamptz, last_at timestamptz, newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('max_causes', retried_causes.max_causes, 1, 1000, required => true);
    PERFORM messages.check_queue(retried_causes.queue_name, 'observe') WHERE retried_causes.queue_name IS NOT NULL;
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    cause AS (
        SELECT f.queue_name, f.fingerprint, count(DISTINCT f.message_id) AS waiting, count(*) AS attempts, min(f.failed_at) AS first_at,
               max(f.failed_at) AS last_at, max(f.message_id) AS newest_id
          FROM messages.queue q CROSS JOIN reach r
         CROSS JOIN LATERAL (
            SELECT f.* FROM messages.failed_attempt f
             WHERE f.queue_name = q.queue_name AND f.failed_at >= coalesce(retried_causes.since, clock_timestamp() - interval '1 day')
             ORDER BY f.failed_at DESC LIMIT 100000) f
         WHERE (retried_causes.queue_name IS NULL OR q.queue_name = retried_causes.queue_name COLLATE "default")
           AND (r.everything OR q.queue_name = ANY (r.queue_names))
           AND EXISTS (SELECT FROM messages.message_rows m WHERE m.id = f.message_id)
         GROUP BY 1, 2 ORDER BY 3 DESC, 2 LIMIT retried_causes.max_causes)
    SELECT c.queue_name, c.fingerprint, c.waiting, c.attempts, c.first_at, c.last_at, c.newest_id,
           (SELECT CASE WHEN r.bodies OR f.queue_name = ANY (r.body_queues)
                        THEN left(concat_ws(': ', f.failure ->> 'error', f.failure ->> 'message'), 500) ELSE f.failure ->> 'error' END
              FROM messages.failed_attempt f CROSS JOIN reach r
             WHERE f.message_id = c.newest_id AND f.fingerprint = c.fingerprint ORDER BY f.attempt DESC LIMIT 1)
      FROM cause c ORDER BY c.waiting DESC, c.fingerprint;
END $$;
COMMENT ON FUNCTION messages.retried_causes IS
    'The causes of failed attempts, by default of the last day, of messages that are not finished: how many messages wait, how many of their attempts failed, and the class of the newest error, or its text if this login may read the bodies. Reads the newest 100,000 failed attempts of each queue. PQ001: unknown queue; PQ004: bad argument.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.resolutions(ids bigint[]) RETURNS TABLE (id bigint, resolution text, resolved_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.id, a.resolution, a.resolved_by
      FROM messages.archive_rows a
     WHERE a.id = ANY (resolutions.ids) AND a.resolution IS NOT NULL
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
$$;
COMMENT ON FUNCTION messages.resolutions IS
    'The resolutions of dead messages, and who resolved them; a message whose id is missing is still open.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.count_resolutions(resolved_by text, OUT requeued bigint, OUT dismissed bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FILTER (WHERE a.resolution = 'requeued'), count(*) FILTER (WHERE a.resolution = 'dismissed')
      FROM messages.archive_rows a
     WHERE a.resolved_by = count_resolutions.resolved_by
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
$$;
COMMENT ON FUNCTION messages.count_resolutions IS
    'How many dead messages were requeued and dismissed under this resolved_by.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.requeued_results(
    resolved_by  text,
    max_messages integer,
    OUT requeued   bigint,
    OUT finished   bigint,
    OUT died_again bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT messages.check_number('max_messages', requeued_results.max_messages, 0, 2147483647);
    SELECT count(*), count(again.id), count(again.id) FILTER (WHERE again.result NOT IN ('success', 'cancelled'))
      FROM (SELECT a.requeued_as
              FROM messages.archive_rows a
             WHERE a.resolved_by = requeued_results.resolved_by AND a.resolution = 'requeued'
               AND ((SELECT r.everything FROM messages.session_reach r)
                    OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
             ORDER BY a.resolved_at, a.id LIMIT requeued_results.max_messages) first
      LEFT JOIN messages.archive_rows again ON again.id = first.requeued_as
$$;
COMMENT ON FUNCTION messages.requeued_results IS
    'What became of the first max_messages that were requeued under this resolved_by: how many there are, how many of them are finished, and how many died again. PQ004: a negative number.'
    ' [for: consumer]';
