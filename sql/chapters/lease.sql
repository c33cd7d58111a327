-- Lease: take messages for a limited time, then finish them or give them back.
--
-- lease takes the first messages of the lanes in three steps: take_first finds and locks them, a row of messages.timer has the end
-- of the lease, and an UPDATE writes end, token and attempt. If it finds too few, take_prepared scans or counts first, and tries once
-- more.
--
-- archive, release and extend need the token of the lease. They return the ids whose lease was still held, and change no other
-- message. archive moves the rows to the archive (finish), release makes them ready again, and extend writes a new end.
-- archive_ended archives messages whose last attempt ended without a result, and messages that expired.
--
-- Tables: inbox.

CREATE OR REPLACE FUNCTION messages.lease(
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    token  uuid        := gen_random_uuid();
    holder text        := coalesce(left(lease.locked_by, 1024), session_user);
    wanted integer     := lease.max_messages;
    taken  integer     := 0;
    first  record;
    until  timestamptz;
BEGIN
    IF lease.lease_for IS NOT NULL THEN
        PERFORM messages.check_duration('lease_for', lease.lease_for, '1 millisecond', '12 hours');
    END IF;
    first := messages.take_first(lease.queue_name, wanted, NULL);
    FOR try IN 1 .. 2 LOOP
        IF first.ids IS NOT NULL THEN
            until := first.moment + coalesce(lease.lease_for, first.lease_for);
            INSERT INTO messages.timer (queue_name, at, lock_token, ids) VALUES (lease.queue_name, until, token, first.ids);
            RETURN QUERY
            UPDATE messages.message_rows m
               SET lock_expires_at = until, leased_at = first.moment, lock_token = token, locked_by = holder, attempts = least(m.attempts + 1, 32767)
              FROM unnest(first.tids) AS f (tid) WHERE m.ctid = f.tid
            RETURNING m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
                      first.max_attempts, m.requeues, m.created_at, m.lock_token, m.lock_expires_at;
            taken := taken + cardinality(first.ids);
        END IF;
        EXIT WHEN try = 2 OR taken = wanted AND taken > 0;
        first := messages.take_prepared(lease.queue_name, wanted - taken, first.moment);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease IS
    'Leases up to max_messages ready messages under one fresh lock_token, highest priority first, then oldest. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument; PQ016: a transaction that leased from a queue with a max_leased stays open.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.take_first(
    queue_name text, wanted integer, prepared timestamptz,
    OUT moment timestamptz, OUT tids tid[], OUT ids bigint[], OUT lease_for interval, OUT max_attempts smallint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The planner must walk message_order_idx whatever the statistics, also in a session that planned when the table was empty.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    called    timestamptz := coalesce(prepared, clock_timestamp());
    called_us bigint      := extract(epoch FROM called) * 1000000;      -- as marks and scans count
    tolerance CONSTANT interval := '5 ms';                              -- from the visible_at of a message to the commit of its publisher
    head       record;
    least_step interval;
    begin_at   timestamptz;
BEGIN
    -- A lane has the messages of one priority in the order of visible_at. Its mark is a sequence with the time from which leases look:
    -- a hint, which scan_queue() corrects. A mark that lies ahead was stored before the clock went back.
    SELECT q.lease_for, q.max_attempts, q.fair_by, r.* INTO head
      FROM messages.queue q
     CROSS JOIN LATERAL (
        SELECT array_agg(f.tid) AS tids, array_agg(f.id) AS ids, (array_agg(f.visible_at))[1] AS first,
               (array_agg(f.mark))[1] AS mark, (array_agg(f.marked))[1] AS marked, (array_agg(f.begins))[1] AS begins
          FROM (SELECT m.*, l.mark, l.marked, l.begins
                  FROM (SELECT l.priority, l.mark, pg_sequence_last_value(l.mark) AS marked,
                               CASE WHEN pg_sequence_last_value(l.mark) <= called_us
                                    THEN 'epoch'::timestamptz + pg_sequence_last_value(l.mark) * interval '1 us' ELSE 'epoch' END AS begins
                          FROM messages.lane l
                         WHERE l.queue_name = q.queue_name AND (l.used OR prepared IS NOT NULL)
                         ORDER BY l.priority DESC) l
                 CROSS JOIN LATERAL (
                    SELECT m.ctid AS tid, m.id, m.visible_at FROM messages.message_rows m
                     WHERE m.queue_name = take_first.queue_name COLLATE "default" AND m.priority = l.priority
                       AND m.visible_at >= l.begins AND m.visible_at <= called
                       AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > called)
                     ORDER BY m.visible_at LIMIT wanted FOR UPDATE SKIP LOCKED) m
                 LIMIT wanted) f OFFSET 0) r
     WHERE q.queue_name = take_first.queue_name COLLATE "default"
       -- Find nothing if a scan, a count or an error has to come first: take_prepared() does that.
       AND (prepared IS NOT NULL
            OR wanted BETWEEN 1 AND 10000 AND NOT q.paused AND num_nonnulls(q.max_leased, q.rate_limit) = 0
               AND pg_sequence_last_value(q.scan_due) BETWEEN called_us - 1000000 AND called_us + 60000000
               AND NOT EXISTS (SELECT FROM messages.timer t
                                WHERE t.queue_name = q.queue_name AND t.group_key IS NOT NULL AND t.at <= called AND t.at > called - interval '5 s')
               -- session_is_limited(), without the cost of a call
               AND (pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE) IS NOT TRUE);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    moment := called;
    tids := head.tids;
    ids := head.ids;
    lease_for := head.lease_for;
    max_attempts := head.max_attempts;
    -- The next lease begins where this one did, or a little behind the clock; unless another session has moved the mark meanwhile.
    begin_at := least(head.first, called - tolerance);
    -- Where keys take turns, whole turns lie within microseconds.
    least_step := CASE WHEN head.fair_by IS NULL THEN '0.2 ms' ELSE '0' END;
    IF begin_at > head.begins + least_step AND pg_sequence_last_value(head.mark) IS NOT DISTINCT FROM head.marked THEN
        PERFORM setval(head.mark, (extract(epoch FROM begin_at) * 1000000)::bigint);
    END IF;
END $$;
COMMENT ON FUNCTION messages.take_first IS
    'Locks the first ready messages of the lanes of a queue, the highest priority first, and moves the mark to the first of them. prepared is the time at which these leases begin. Without it this returns no moment, and locks nothing, where take_prepared() has to be called instead.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.take_prepared(
    queue_name text, wanted integer, tried timestamptz, consumes boolean DEFAULT false,
    OUT moment timestamptz, OUT tids tid[], OUT ids bigint[], OUT lease_for interval, OUT max_attempts smallint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    policy messages.queue;
    freed  boolean;
    first  record;
BEGIN
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = take_prepared.queue_name COLLATE "default";
    PERFORM messages.check_lease(take_prepared.queue_name, policy.paused, wanted, NULL);
    -- End only what was due before the first try, or this call could get back a lease of a millisecond that it took itself.
    freed := messages.scan_queue(take_prepared.queue_name, wanted, coalesce(tried, clock_timestamp()));
    IF tried IS NOT NULL AND NOT freed THEN
        RETURN;
    END IF;
    IF policy.max_leased IS NOT NULL AND NOT consumes THEN
        -- Read the policy again: the session that this one waited for may have changed it.
        PERFORM messages.lock_queue(take_prepared.queue_name);
        SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = take_prepared.queue_name COLLATE "default";
        PERFORM messages.check_lease(take_prepared.queue_name, policy.paused, wanted, NULL);
        wanted := least(wanted, CASE WHEN policy.max_leased IS NOT NULL THEN messages.leases_left(take_prepared.queue_name, policy.max_leased) END);
    END IF;
    IF policy.rate_limit IS NOT NULL THEN
        wanted := least(wanted, (messages.rate_left(policy, clock_timestamp())).leases);
    END IF;
    first := messages.take_first(take_prepared.queue_name, wanted, clock_timestamp());
    moment := first.moment;
    IF policy.rate_limit IS NOT NULL AND first.ids IS NOT NULL THEN
        -- Only messages that are leased use up the rate, so they are locked by now.
        SELECT s.wanted, s.moment INTO wanted, moment FROM messages.spend_rate(policy, cardinality(first.ids)) s;
    END IF;
    tids := first.tids[:wanted];
    ids := nullif(first.ids[:wanted], '{}');
    lease_for := first.lease_for;
    max_attempts := first.max_attempts;
END $$;
COMMENT ON FUNCTION messages.take_prepared IS
    'Does what take_first does for a lease that found fewer messages than it wanted, or that has not tried: checks its arguments, scans, and locks no more messages than max_leased and rate_limit allow; the locked messages use up the rate. tried is the time at which the lease tried, or NULL; after a try, locks nothing if the scan frees nothing. Errors as in lease.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_lease(queue_name text, paused boolean, max_messages integer, lease_for interval) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_access(queue_name, 'consume');
    IF paused IS NULL THEN
        PERFORM messages.raise_unknown_queue(queue_name);
    ELSIF paused THEN
        RAISE EXCEPTION 'queue % is paused', quote_literal(queue_name)
            USING ERRCODE = 'PQ002', HINT = format('Resume it: SELECT messages.resume_queue(%L)', queue_name);
    END IF;
    PERFORM messages.check_number('max_messages', max_messages, 1, 10000, required => true),
            messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.check_lease IS
    'True, or raises PQ001 for a queue whose paused is NULL because there is none, PQ002 or 42501 if this login cannot lease from it now, PQ004 for a bad argument.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_duration('lease_for', extend.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT m.ctid AS tid, m.lock_expires_at FROM messages.message_rows m
         WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > moment
         ORDER BY m.id FOR UPDATE SKIP LOCKED),
    extended AS (
        UPDATE messages.message_rows m SET lock_expires_at = moment + coalesce(
               extend.lease_for, (SELECT q.lease_for FROM messages.queue q WHERE q.queue_name = m.queue_name))
          FROM held WHERE m.ctid = held.tid
        RETURNING m.id, m.queue_name, m.lock_expires_at, m.lock_expires_at < held.lock_expires_at AS is_shorter),
    -- The timer of the lease serves a longer lease as well, but comes too late for a shorter lease.
    timed AS (
        INSERT INTO messages.timer (queue_name, at, lock_token, ids)
        SELECT e.queue_name, max(e.lock_expires_at), extend.lock_token, array_agg(e.id) FROM extended e WHERE e.is_shorter GROUP BY e.queue_name)
    -- A message locked by another transaction may still be leased: do not report it as lost.
    SELECT m.id FROM messages.message_rows m
     WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > moment;
END $$;
COMMENT ON FUNCTION messages.extend IS
    'Makes leases end lease_for from now (by default the lease_for of the queue), and returns the ids; an id that is missing was lost. Waits for nobody: a message that another transaction has locked keeps the end that it had. PQ004: bad duration.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.release(
    lock_token    uuid,
    ids           bigint[],
    delay         interval DEFAULT '0',
    count_attempt boolean  DEFAULT true,
    details       text     DEFAULT NULL,
    failure       jsonb    DEFAULT NULL,
    back_off      boolean  DEFAULT false
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
-- The messages are locked in the order of the index of ids, so that two calls cannot deadlock.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    -- A text without a class begins with a space, so that its first word is not taken for a class.
    error    text        := left(CASE WHEN release.failure ->> 'error' <> '' THEN concat_ws(': ', release.failure ->> 'error', release.failure ->> 'message')
                                      ELSE ' ' || coalesce(nullif(release.failure ->> 'message', ''), release.details) END, 500);
    released record;
BEGIN
    PERFORM messages.check_duration('delay', release.delay, '0', '366 days');
    PERFORM messages.check_outcomes(NULL, NULL, release.failure);
    IF error IS NOT NULL AND release.count_attempt IS NOT FALSE THEN
        INSERT INTO messages.failed_attempt (message_id, attempt, queue_name, leased_at, handled_by, fingerprint, failure)
        SELECT m.id, m.attempts, m.queue_name, m.leased_at, m.locked_by, messages.fingerprint('failed', release.details, release.failure),
               coalesce(release.failure, jsonb_build_object('message', left(release.details, 4000)))
          FROM messages.message_rows m JOIN messages.queue q ON q.queue_name = m.queue_name
         WHERE m.id = ANY (release.ids) AND m.lock_token = release.lock_token AND m.lock_expires_at > clock_timestamp() AND m.attempts < q.max_attempts
        ON CONFLICT DO NOTHING;
    END IF;
    WITH freed AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL,
               visible_at = CASE
                   WHEN release.back_off THEN
                       -- In seconds, because an interval overflows. Jitter, from half of the pause to all of it, so that what failed
                       -- together does not come back together.
                       moment + least(extract(epoch FROM q.backoff_max), extract(epoch FROM q.backoff_first) * 2 ^ least(greatest(m.attempts, 1) - 1, 30))
                                * (0.5 + random() / 2) * interval '1 second'
                   WHEN release.delay > '0' THEN greatest(moment, moment + release.delay)
                   ELSE m.visible_at END,
               -- Where keys take turns, the message keeps its turn for the end of the delay.
               due_at = CASE WHEN m.fair_key IS NOT NULL AND (release.back_off OR release.delay > '0') THEN coalesce(m.due_at, m.visible_at) ELSE m.due_at END,
               attempts = m.attempts - (release.count_attempt IS FALSE)::integer,
               last_error = coalesce(error, m.last_error)
          FROM messages.queue q
         WHERE m.id = ANY (release.ids) AND m.lock_token = release.lock_token AND m.lock_expires_at > clock_timestamp()
           AND q.queue_name = m.queue_name AND (release.count_attempt IS FALSE OR m.attempts < q.max_attempts)
        RETURNING m.id, m.queue_name, m.visible_at, m.expires_at),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, ids)
        SELECT f.queue_name, its.at, array_agg(f.id)
          FROM freed f CROSS JOIN LATERAL (
            -- The timer of a message that has expired in its lease may have been used.
            SELECT CASE WHEN f.expires_at <= moment THEN moment WHEN f.visible_at > moment THEN f.visible_at END AS at) its
         WHERE its.at IS NOT NULL GROUP BY f.queue_name, its.at)
    SELECT min(f.queue_name) AS queue_name, array_agg(f.id ORDER BY f.visible_at, f.id) AS ids INTO released FROM freed f;
    IF released.ids IS NOT NULL THEN
        PERFORM messages.give_back(released.queue_name, released.ids);
        PERFORM messages.notify_for(released.queue_name, released.ids[1]);       -- waiting consumers then query when to lease again
        RETURN QUERY SELECT unnest(released.ids);
    END IF;
    -- A message that is left under this token had its last attempt.
    RETURN QUERY SELECT messages.archive(release.lock_token, release.ids, 'failed',
                                         coalesce(release.details, 'released after its last attempt'), failure => release.failure);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a message of this lease');
END $$;
COMMENT ON FUNCTION messages.release IS
    'Gives leased messages back, now or after a delay or the back-off of the queue, and returns the ids; an id that is missing was lost. One that is ready at once keeps its place in the order; one with a delay comes when its time comes. Keeps the error of failure, or else details, as last_error, and all of it as a failed attempt for 30 days. After its last attempt a message is archived as failed instead, with details and failure. count_attempt => false takes the attempt off the count, for work that should merely be done later. PQ004: bad delay or failure; PQ016: another transaction has a message of this lease for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.archive(
    lock_token uuid,
    ids        bigint[],
    result     text  DEFAULT 'success',
    details    text  DEFAULT NULL,
    handled_by text  DEFAULT NULL,
    outcomes   jsonb DEFAULT NULL,
    output     jsonb DEFAULT NULL,
    failure    jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    finished record;
BEGIN
    finished := messages.finish(archive.lock_token, archive.ids, archive.result, archive.details, archive.handled_by,
                                archive.outcomes, archive.output, archive.failure);
    IF finished.entered <> '{}' THEN
        PERFORM messages.notify_for(finished.queue_name, finished.entered[1]);
    END IF;
    RETURN QUERY SELECT unnest(finished.done);
END $$;
COMMENT ON FUNCTION messages.archive IS
    'Finishes leased messages and returns the ids; an id that is missing was lost. outcomes {"id": {"result", "details", "output", "failure"}} overrides these for single messages. PQ004: bad result, or an output or failure that is too large; 55P03: another transaction has one of them for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.finish(
    lock_token uuid, ids bigint[], result text, details text, handled_by text, outcomes jsonb, output jsonb, failure jsonb,
    OUT done bigint[], OUT queue_name text, OUT entered bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- No EXCEPTION clause handles the time-out: its subtransaction would be a tenth of the cost.
SET lock_timeout = '3s'
-- The messages are locked in the order of the index of ids, so that two calls cannot deadlock.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    held record;
BEGIN
    -- A lease is never compared with now(), because the caller's transaction may have begun before the lease ended.
    IF finish.result = 'success' AND num_nonnulls(finish.outcomes, finish.output, finish.failure, finish.details) = 0 THEN
        WITH mine AS (
            DELETE FROM messages.message_rows m
             WHERE m.id = ANY (finish.ids) AND m.lock_token = finish.lock_token AND m.lock_expires_at > clock_timestamp()
            RETURNING m.id, m.created_at, m.leased_at, m.requeued_from, m.priority, m.attempts, m.requeues, m.queue_name,
                      m.locked_by, m.reference, m.topic, m.group_key, m.place, m.headers, m.message, m.lock_expires_at),
        archived AS (
            INSERT INTO messages.archive_rows (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                               handled_by, reference, topic, group_key, headers, message)
            SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, 'success',
                   left(coalesce(finish.handled_by, locked_by), 1024), reference, topic, group_key, headers, message FROM mine)
        SELECT array_agg(m.id) AS ids, min(m.queue_name) AS queue_name, min(m.lock_expires_at) AS at, NULL::messages.ended_message[] AS dead,
               array_agg(m.group_key) FILTER (WHERE m.group_key IS NOT NULL) AS keys,
               array_agg(m.place) FILTER (WHERE m.group_key IS NOT NULL) AS places
          INTO held FROM mine m;
    ELSE
        PERFORM messages.check_result(finish.result), messages.check_outcomes(finish.outcomes, finish.output, finish.failure);
        WITH mine AS (
            DELETE FROM messages.message_rows m
             WHERE m.id = ANY (finish.ids) AND m.lock_token = finish.lock_token AND m.lock_expires_at > clock_timestamp()
            RETURNING m.*),
        checked AS (
            SELECT mine.*, coalesce(o.outcome ->> 'result', finish.result) AS result,
                   left(coalesce(o.outcome ->> 'details', finish.details), 4000) AS details,
                   coalesce(o.outcome -> 'output', finish.output) AS output,
                   coalesce(o.outcome -> 'failure', finish.failure) AS failure
              FROM mine CROSS JOIN LATERAL (SELECT finish.outcomes -> mine.id::text AS outcome) o),
        archived AS (
            INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                                    handled_by, details, reference, topic, group_key, output, failure, fingerprint, headers, message)
            SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                   left(coalesce(finish.handled_by, locked_by), 1024), details, reference, topic, group_key, output, failure,
                   CASE WHEN result NOT IN ('success', 'cancelled') THEN messages.fingerprint(result, details, failure) END, headers, message
              FROM checked
            RETURNING id, archived_at, queue_name, result, fingerprint, requeues, group_key)
        SELECT array_agg(m.id) AS ids, min(m.queue_name) AS queue_name, min(m.lock_expires_at) AS at,
               array_agg(ROW(a.*)::messages.ended_message) FILTER (WHERE a.fingerprint IS NOT NULL) AS dead,
               array_agg(m.group_key) FILTER (WHERE m.group_key IS NOT NULL) AS keys,
               array_agg(m.place) FILTER (WHERE m.group_key IS NOT NULL) AS places
          INTO held FROM mine m JOIN archived a ON a.id = m.id;
    END IF;
    done := held.ids;
    queue_name := held.queue_name;
    -- Most leases are finished as a whole and in their order; any other timer finds nothing to do when it is due.
    DELETE FROM messages.timer t WHERE t.queue_name = held.queue_name AND t.at = held.at AND t.ids = held.ids;
    IF held.dead IS NOT NULL THEN
        PERFORM messages.record_dead(held.dead);
    END IF;
    IF held.keys IS NOT NULL THEN
        entered := messages.next_of_groups(held.queue_name, held.keys, held.places);
    END IF;
END $$;
COMMENT ON FUNCTION messages.finish IS
    'Does what archive does, but does not notify: returns the ids, their queue, and which messages of their groups entered their lanes in their place.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.archive_ended(queue_name text, ids bigint[], moment timestamptz, OUT archived bigint, OUT entered bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    held record;
BEGIN
    -- One statement, one snapshot: what it archives is what it deletes.
    WITH gone AS (
        DELETE FROM messages.message_rows m WHERE m.ctid = ANY (ARRAY(
            SELECT m.ctid FROM messages.message_rows m
             WHERE m.id = ANY (archive_ended.ids) AND coalesce(m.lock_expires_at <= archive_ended.moment, m.expires_at <= archive_ended.moment)
               FOR UPDATE SKIP LOCKED))
        RETURNING m.*),
    archived AS (
        INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                                handled_by, details, reference, topic, group_key, fingerprint, headers, message)
        SELECT g.id, g.created_at, g.leased_at, g.requeued_from, g.priority,
               least(g.attempts + (g.lock_expires_at IS NOT NULL AND g.lock_token IS NULL)::integer, 32767), g.requeues, g.queue_name,
               why.result, g.locked_by, why.details, g.reference, g.topic, g.group_key,
               messages.fingerprint(why.result, NULL, NULL), g.headers, g.message
          FROM gone g CROSS JOIN LATERAL (
            SELECT CASE WHEN g.lock_expires_at IS NULL THEN 'expired' ELSE 'lock_expired' END AS result,
                   CASE WHEN g.lock_expires_at IS NULL THEN format('not handled by %s', g.expires_at)
                        ELSE format('the lease ended at %s without a result', g.lock_expires_at) END AS details) why
        RETURNING a.id, a.archived_at, a.queue_name, a.result, a.fingerprint, a.requeues, a.group_key)
    SELECT array_agg(ROW(a.*)::messages.ended_message) AS dead,
           array_agg(g.group_key) FILTER (WHERE g.group_key IS NOT NULL) AS keys,
           array_agg(g.place) FILTER (WHERE g.group_key IS NOT NULL) AS places
      INTO held FROM gone g JOIN archived a ON a.id = g.id;
    archived := coalesce(cardinality(held.dead), 0);
    entered := '{}';
    IF held.dead IS NOT NULL THEN
        PERFORM messages.record_dead(held.dead);
    END IF;
    IF held.keys IS NOT NULL THEN
        entered := messages.next_of_groups(archive_ended.queue_name, held.keys, held.places);
    END IF;
END $$;
COMMENT ON FUNCTION messages.archive_ended IS
    'Archives messages of a queue whose lease has ended as lock_expired and those that nobody had leased by their expires_at as expired, and returns how many, and which messages of their groups entered their lanes in their place; leaves out what another session has locked. Does not notify for those.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.archive_and_lease(
    lock_token   uuid,
    ids          bigint[],
    outcomes     jsonb,
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS TABLE (leased messages.leased_message, archived bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    finished record;
BEGIN
    finished := messages.finish(archive_and_lease.lock_token, archive_and_lease.ids, 'success', NULL, archive_and_lease.locked_by,
                                archive_and_lease.outcomes, NULL, NULL);
    archived := CASE WHEN finished.done @> archive_and_lease.ids THEN NULL ELSE coalesce(finished.done, '{}') END;
    RETURN QUERY SELECT l, archived FROM messages.lease(archive_and_lease.queue_name, archive_and_lease.max_messages,
                                                        archive_and_lease.lease_for, archive_and_lease.locked_by) l;
    IF NOT FOUND THEN
        RETURN NEXT;
    END IF;
    -- Notify only for messages that this call has let in and does not lease itself.
    IF EXISTS (SELECT FROM messages.message_rows m WHERE m.id = ANY (finished.entered) AND m.lock_expires_at IS NULL) THEN
        PERFORM messages.notify_for(finished.queue_name, finished.entered[1]);
    END IF;
END $$;
COMMENT ON FUNCTION messages.archive_and_lease IS
    'Archives the messages of a lease, as success or as outcomes say, and leases the next, in one call. archived is NULL if all were archived, else it has the ids of those that were; if nothing was leased, a single row has archived and no message. The call can lease the next message of a group whose place it frees. Errors as in archive and lease.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    token  uuid    := gen_random_uuid();
    wanted integer := consume.max_messages;
    taken  integer := 0;
    first  record;
BEGIN
    -- Lease and archive are one call: no other session sees the lease, so it needs no timer.
    first := messages.take_first(consume.queue_name, wanted, NULL);
    FOR try IN 1 .. 2 LOOP
        IF first.ids IS NOT NULL THEN
            RETURN QUERY
            UPDATE messages.message_rows m
               SET lock_expires_at = 'infinity', leased_at = first.moment, lock_token = token, attempts = least(m.attempts + 1, 32767)
              FROM unnest(first.tids) AS f (tid) WHERE m.ctid = f.tid
            RETURNING m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
                      first.max_attempts, m.requeues, m.created_at, NULL::uuid, NULL::timestamptz;
            PERFORM messages.archive(token, first.ids, handled_by => coalesce(consume.handled_by, session_user));
            taken := taken + cardinality(first.ids);
        END IF;
        EXIT WHEN try = 2 OR taken = wanted AND taken > 0;
        first := messages.take_prepared(consume.queue_name, wanted - taken, first.moment, consumes => true);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.consume IS
    'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. max_leased does not apply. Errors as in lease.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.held_messages(lock_token uuid, ids bigint[], holder text) RETURNS SETOF messages.leased_message
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
           q.max_attempts, m.requeues, m.created_at, m.lock_token, m.lock_expires_at
      FROM messages.message_rows m JOIN messages.queue q USING (queue_name)
     WHERE m.id = ANY (held_messages.ids) AND m.lock_token = held_messages.lock_token
    UNION ALL
    SELECT a.id, a.queue_name, a.message, a.headers, a.reference, a.topic, a.group_key, a.priority, a.attempts,
           q.max_attempts, a.requeues, a.created_at, NULL, NULL
      FROM messages.archive_rows a JOIN messages.queue q USING (queue_name)
     WHERE a.id = ANY (held_messages.ids)
       AND (a.result IN ('success', 'cancelled') AND a.handled_by IS DISTINCT FROM holder OR a.resolution = 'requeued') IS NOT TRUE
     ORDER BY id
$$;
COMMENT ON FUNCTION messages.held_messages IS
    'Those of these messages that are leased under this token, and those that are finished, without a lease. Leaves out what somebody other than holder finished or cancelled, and what was requeued.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.once(consumer text, message_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_length('consumer', once.consumer, 1, 255, required => true);
    IF once.message_id IS NULL THEN
        RAISE EXCEPTION 'message_id is NULL' USING ERRCODE = 'PQ004', HINT = 'Give the id of the message.';
    END IF;
    -- A limited login may name only messages of its own queues, or it could keep another team from its effect. The error must not name
    -- the queue of another team either.
    IF messages.session_is_limited() THEN
        PERFORM messages.check_access(
            (SELECT m.queue_name FROM messages.message_rows m WHERE m.id = once.message_id
                AND m.queue_name IN (SELECT messages.granted_queues('consume'))), 'consume');
    END IF;
    INSERT INTO messages.inbox (consumer, message_id) VALUES (once.consumer, once.message_id) ON CONFLICT DO NOTHING;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('message %s of consumer %L', once.message_id, left(once.consumer, 100)), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.once IS
    'True the first time that it is called for a consumer and a message, else false. Called in the transaction of an effect, it lets the effect happen once, however often the message is delivered. Remembered for 30 days. Of two concurrent calls the second waits for the first. PQ004: bad argument; PQ016: the transaction of the first stayed open for more than three seconds, or waits for the second.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.abandoned(lock_token uuid, ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    SELECT m.id FROM messages.message_rows m
     WHERE m.id = ANY (abandoned.ids) AND m.lock_token = abandoned.lock_token AND m.attempts > 1
       AND NOT EXISTS (SELECT FROM messages.failed_attempt f
                        WHERE f.message_id = m.id AND f.attempt = m.attempts - 1 AND NOT f.failure ? 'unfinished')
$$;
COMMENT ON FUNCTION messages.abandoned IS
    'Which of these leased messages had an attempt before that ended without a result of its own: its lease ended, or its consumer did. A message that ended its consumer may end the next one, too, so handle these messages in small batches.'
    ' [for: consumer]';
