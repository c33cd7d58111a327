-- Dead messages: lease them, then requeue or dismiss them.
--
-- A message is dead if it was archived with any result but success and cancelled. It is on a list, messages.dead_message, until it
-- is resolved: requeue publishes it again under a new id, dismiss closes it with a reason. Both need a lease of the dead message,
-- so that two people cannot resolve it at once. requeue_dead and dismiss_dead lease and resolve in one call.
-- record_dead puts messages on the list.
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
    'Publishes leased dead messages again under new ids, with a new body where messages {"id": body} has one, and records it in the archive. Only a new body is measured against max_body_bytes. An id that is missing was lost. PQ004: bad delay or resolved_by; PQ016: another transaction has a dead message of this lease for more than three seconds.'
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

CREATE OR REPLACE FUNCTION messages.record_dead(dead messages.ended_message[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new record;
BEGIN
    FOR new IN
        INSERT INTO messages.dead_message AS d (id, archived_at, queue_name, result, fingerprint, requeues, group_key)
        SELECT e.id, e.archived_at, e.queue_name, e.result, e.fingerprint, e.requeues, e.group_key FROM unnest(dead) e
        ON CONFLICT DO NOTHING             -- plain SQL archived it twice
        RETURNING d.id, d.queue_name, d.result
    LOOP
        RAISE WARNING 'dead message: archive id %, queue %, result %', new.id, new.queue_name, new.result;
    END LOOP;
    -- A dead message blocks its group: the messages of the group that nobody has leased lose their places. In a group with one place, the
    -- dead message had it.
    PERFORM messages.join_groups(blocked.queue_name, ARRAY(
        SELECT m.id FROM messages.message_rows m
         WHERE m.queue_name = blocked.queue_name AND m.group_key = blocked.group_key AND m.place IS NOT NULL AND m.lock_expires_at IS NULL
         ORDER BY m.place FOR UPDATE SKIP LOCKED))
       FROM (SELECT DISTINCT e.queue_name, e.group_key FROM unnest(dead) e JOIN messages.queue q ON q.queue_name = e.queue_name
              WHERE e.group_key IS NOT NULL AND q.on_dead_head = 'block' AND q.max_leased_per_group > 1) blocked;
    IF NOT messages.notifications_are_paused() THEN
        PERFORM pg_notify('dead_message', min(e.id)::text) FROM unnest(dead) e GROUP BY e.queue_name;
    END IF;
END $$;
COMMENT ON FUNCTION messages.record_dead IS
    'Puts dead messages on the work list, logs a WARNING for each, makes the ready messages of a group that a dead message blocks wait in their group again, and sends NOTIFY dead_message with the first archive id of each queue.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.deaths(queue_name text, holder text, period interval) RETURNS TABLE (result text, number bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(deaths.queue_name, 'consume');
    PERFORM messages.check_duration('period', deaths.period, '0', '3660 days');
    RETURN QUERY
    SELECT a.result, count(*) FROM messages.archive_rows a
     WHERE a.fingerprint IS NOT NULL AND a.archived_at >= clock_timestamp() - deaths.period AND a.queue_name = deaths.queue_name COLLATE "default"
       AND a.result IN ('failed', 'lock_expired') AND starts_with(a.handled_by, deaths.holder)
     GROUP BY a.result ORDER BY a.result;
END $$;
COMMENT ON FUNCTION messages.deaths IS
    'How many messages of a queue died within this period in the hands of consumers whose locked_by begins with holder, by result: failed or lock_expired. What a handler rejected is not among them. PQ001: unknown queue.'
    ' [for: consumer]';

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
