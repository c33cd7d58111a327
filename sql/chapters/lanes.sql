-- Lanes: where a lease looks for messages, and the timers of messages that have to be checked again.
--
-- A lane is one priority of a queue. Its mark, a sequence, is the visible_at from which a lease looks. A rollback does not undo a
-- mark, so a mark is a hint, never the truth: scan_queue reads all of the queue and finds the messages that a mark has passed.
--
-- A timer is the time at which a session checks some messages again. end_due takes the timers that are due: it archives messages
-- that are out of attempts or past their expires_at, and gives the others back to their lane (give_back, enter).
--
-- repair_lanes and repair_timers make lanes, marks and timers that are missing, such as after a restore.
--
-- Tables: message_rows, lane, timer, unused_sequence.

CREATE OR REPLACE FUNCTION messages.scan_queue(queue_name text, wanted integer DEFAULT 1000, began timestamptz DEFAULT clock_timestamp()) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    due    regclass    := (SELECT q.scan_due FROM messages.queue q WHERE q.queue_name = scan_queue.queue_name COLLATE "default");
    is_due boolean;
    since  timestamptz := began - interval '5 s';
    ended  record;
    more   boolean     := false;
    freed  bigint      := 0;
    step   integer;
BEGIN
    IF due IS NULL OR current_setting('transaction_read_only')::boolean THEN
        RETURN false;
    END IF;
    -- A time more than a minute ahead was stored before the clock went back.
    is_due := messages.stored_time(due, began + interval '1 min') <= began;
    IF is_due THEN
        PERFORM messages.store_time(due, began + interval '1 s');      -- other sessions do not scan meanwhile
        since := '-infinity';
    END IF;
    -- End what is due until enough messages are free: no other session sees them before this transaction ends. Most timers belong to
    -- finished messages.
    FOREACH step IN ARRAY '{1, 10, 100, 1000}'::integer[] LOOP
        EXIT WHEN freed >= wanted OR NOT EXISTS (
            SELECT FROM messages.timer t WHERE t.queue_name = scan_queue.queue_name COLLATE "default" AND t.at <= began AND t.at > since);
        ended := messages.end_due(scan_queue.queue_name, greatest(step, least(wanted, 1000)), since, began);
        freed := freed + ended.freed;
        more := ended.more;
        EXIT WHEN NOT more;
    END LOOP;
    IF NOT is_due THEN
        RETURN freed > 0;
    END IF;
    IF freed < wanted OR NOT more THEN
        PERFORM messages.fill_groups(scan_queue.queue_name, wanted);
    END IF;
    PERFORM messages.correct_marks(scan_queue.queue_name);
    PERFORM messages.pause_notifications();
    -- A lease that finds enough messages scans only when a scan has been due for a second. Where more is due, that second counts as
    -- over, so that the next lease scans at once. After a scan over many leases or dead versions, a hundred times its duration passes, at most 30 s.
    PERFORM messages.store_time(due, clock_timestamp() - interval '1 s' + CASE WHEN more THEN '0' ELSE
        greatest(least(100 * (clock_timestamp() - began), interval '30 s'), '1.05 s') END);
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.scan_queue IS
    'Ends what fell due in a queue in the last five seconds, until so many messages are free; and, if a scan is due, scans all of the queue from its beginning: ends what is due, lets messages into groups that have room, and puts each mark at the first ready message. Returns whether something may have become ready.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.correct_marks(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    lane  record;
BEGIN
    FOR lane IN
        SELECT l.priority, l.mark, messages.stored_time(l.mark) AS at, first.at AS first
          FROM messages.lane l
          LEFT JOIN LATERAL (
            SELECT m.visible_at - interval '1 us' AS at FROM messages.message_rows m
             WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at <= began
               AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > began)
             ORDER BY m.visible_at LIMIT 1) first ON true
         WHERE l.queue_name = correct_marks.queue_name COLLATE "default" AND l.mark IS NOT NULL
    LOOP
        -- Some messages were published long before their commit, or leased by a transaction that rolled back. Where no message is
        -- ready, the mark moves past the leased messages.
        IF lane.first <> lane.at OR lane.first IS NULL AND (lane.at < began - interval '2 s' OR lane.at > began) THEN
            PERFORM messages.store_time(lane.mark, coalesce(lane.first, began - interval '1 s'));
        END IF;
    END LOOP;
    -- While the first publisher opened the lane, or was rolled back, others may have published there.
    FOR lane IN
        SELECT l.priority
          FROM messages.lane l
          -- LIMIT 1, because the planner may answer EXISTS by a walk over the whole queue.
         CROSS JOIN LATERAL (SELECT FROM messages.message_rows m WHERE m.queue_name = l.queue_name AND m.priority = l.priority LIMIT 1) used
         WHERE l.queue_name = correct_marks.queue_name COLLATE "default" AND NOT l.used
    LOOP
        PERFORM messages.open_lane(correct_marks.queue_name, lane.priority);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.correct_marks IS
    'Puts the mark of each lane of a queue right before its first ready message, so that what enters at the mark comes first, and opens lanes that are used.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.prepare_lane(queue_name text, priority integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known record;
BEGIN
    SELECT q.fair_by, l.used INTO known
      FROM messages.queue q LEFT JOIN messages.lane l ON l.queue_name = q.queue_name AND l.priority = prepare_lane.priority
     WHERE q.queue_name = prepare_lane.queue_name COLLATE "default";
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(prepare_lane.queue_name);
    END IF;
    IF known.used IS NOT TRUE THEN
        PERFORM messages.check_publish(prepare_lane.priority, NULL, NULL, NULL, NULL);
        PERFORM messages.open_lane(prepare_lane.queue_name, prepare_lane.priority);
    END IF;
    RETURN known.fair_by;
END $$;
COMMENT ON FUNCTION messages.prepare_lane IS
    'Raises PQ001 or PQ004 unless messages may enter a queue at a priority, whose lane it opens if it is the first. Returns by what keys take turns; NULL if messages enter in the order in which they are published.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.open_lane(queue_name text, priority integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- A session that has locked the row is opening the lane; if it rolls back, the next scan opens it.
    UPDATE messages.lane l SET used = true
     WHERE l.ctid = (SELECT l.ctid FROM messages.lane l
                      WHERE l.queue_name = open_lane.queue_name COLLATE "default" AND l.priority = open_lane.priority AND NOT l.used
                        FOR NO KEY UPDATE SKIP LOCKED);
END $$;
COMMENT ON FUNCTION messages.open_lane IS 'Lets leases look at the lane of a priority that is used for the first time, unless another session is about to.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.enter(
    queue_name text, ids bigint[], places smallint[] DEFAULT NULL, own timestamptz[] DEFAULT NULL, ended_by timestamptz DEFAULT clock_timestamp()
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    back   record;
BEGIN
    -- Each message keeps its place or, where leases have passed it, gets a place at the mark: the last message at the mark itself, the
    -- others microseconds before. Where keys take turns, the front may lie behind the mark.
    WITH free AS MATERIALIZED (
        SELECT m.ctid AS tid, coalesce(e.place, m.place) AS place, coalesce(e.own, m.due_at, m.visible_at) AS own,
               cardinality(ids) - e.number + (m.fair_key IS NOT NULL)::integer AS after, l.mark,
               marked.at AS marked, coalesce(CASE WHEN m.fair_key IS NOT NULL THEN messages.fair_front(m.queue_name, m.priority) END, marked.at) AS begins
          FROM unnest(ids, places, own) WITH ORDINALITY AS e (id, place, own, number) JOIN messages.message_rows m ON m.id = e.id
          JOIN messages.lane l ON l.queue_name = m.queue_name AND l.priority = m.priority
         CROSS JOIN LATERAL (SELECT messages.stored_time(l.mark, moment) AS at) marked
         -- Meanwhile the message may have been leased, got a new delay, or been let in by another session.
         WHERE coalesce(m.lock_expires_at <= ended_by, true)
           AND CASE WHEN e.place IS NULL THEN m.visible_at <= moment ELSE m.visible_at = 'infinity' END
           FOR UPDATE OF m SKIP LOCKED),
    entered AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL, due_at = NULL, place = f.place,
               visible_at = CASE WHEN f.own >= f.begins THEN f.own ELSE f.begins - f.after * interval '1 us' END,
               -- A lease taken by plain SQL has no token and did not count its attempt, so its end counts it.
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL AND m.lock_token IS NULL)::integer, 32767)
          FROM free f WHERE m.ctid = f.tid
        RETURNING m.id, m.visible_at, f.mark, f.marked)
    SELECT array_agg(e.id) AS ids, array_agg(e.mark) FILTER (WHERE e.visible_at < e.marked) AS marks, array_agg(e.visible_at) FILTER (WHERE e.visible_at < e.marked) AS places
      INTO back FROM entered e;
    IF back.ids IS NULL THEN
        RETURN '{}';
    END IF;
    IF back.marks IS NOT NULL THEN
        PERFORM messages.store_time(b.mark, least(messages.stored_time(b.mark, moment), min(b.at) - interval '1 us')) FROM unnest(back.marks, back.places) AS b (mark, at) GROUP BY b.mark;
    END IF;
    -- A lease may move the mark past these messages before this commit. Then this timer finds them before the mark, and they enter again.
    INSERT INTO messages.timer (queue_name, at, ids) VALUES (enter.queue_name, moment + interval '50 ms', back.ids);
    RETURN back.ids;
END $$;
COMMENT ON FUNCTION messages.enter IS
    'Puts messages of a queue into their lanes, in the order of ids: each at its place or, if leases have passed that place, at the mark, before all messages that leases have not reached. Clears leases that had ended by ended_by. places has the place of each message in its group, own its place in the lane. Returns the ids that entered; leaves out messages that are leased, delayed, or locked by another session. Does not notify.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.give_back(queue_name text, ids bigint[], ended_by timestamptz DEFAULT clock_timestamp()) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    waits   record;
    entered bigint[]    := '{}';
BEGIN
    -- A message waits in its group if it has no place there, because plain SQL leased it; and, in a group
    -- with several places, if it has a delay.
    WITH back AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL, place = NULL, visible_at = 'infinity',
               -- Where keys take turns, due_at is the turn of the message; a delay that ends later counts.
               due_at = coalesce(greatest(m.due_at, nullif(m.visible_at, 'infinity')), m.created_at),
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL AND m.lock_token IS NULL)::integer, 32767)
          FROM (SELECT m.ctid AS tid, m.place
                  FROM messages.message_rows m JOIN messages.queue q ON q.queue_name = m.queue_name
                 WHERE m.id = ANY (ids) AND coalesce(m.group_key, '') <> ''       -- not IS NOT NULL, which tempts the planner to walk the index of groups
                   AND coalesce(m.lock_expires_at <= ended_by, true)
                   AND (m.visible_at < 'infinity' OR m.lock_expires_at IS NOT NULL)
                   AND (m.place IS NULL OR q.max_leased_per_group > 1 AND m.visible_at > moment)
                   FOR UPDATE OF m SKIP LOCKED) w
         WHERE m.ctid = w.tid
        RETURNING m.group_key, w.place, m.due_at),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, ids, group_key)
        SELECT give_back.queue_name, b.due_at, '{}', b.group_key FROM back b WHERE b.due_at > moment)
    SELECT array_agg(b.group_key) AS keys, array_agg(b.place) AS places INTO waits FROM back b;
    IF waits.keys IS NOT NULL THEN
        entered := messages.next_of_groups(give_back.queue_name, waits.keys, waits.places);
    END IF;
    RETURN entered || messages.enter(give_back.queue_name, ids, ended_by => give_back.ended_by);
END $$;
COMMENT ON FUNCTION messages.give_back IS
    'Clears the leases of these messages that had ended by ended_by, and puts the ready messages back into their lanes. Where a message must wait in its group again, lets the next message of the group in. Returns the ids that entered; leaves out messages that another session has locked. Does not notify.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.end_due(
    queue_name   text,
    max_messages integer DEFAULT 1000,
    due_since    timestamptz DEFAULT '-infinity',
    moment       timestamptz DEFAULT clock_timestamp(),
    OUT freed    bigint,
    OUT archived bigint,
    OUT more     boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    retry_at CONSTANT timestamptz := moment + interval '100 ms';
    due      record;
    seen     record;
    gone     record;
    entered  bigint[] := '{}';
    ready    bigint;
    locked   bigint;
BEGIN
    WITH next AS MATERIALIZED (
        SELECT t.ctid AS tid, t.at, greatest(cardinality(t.ids), 1) AS number FROM messages.timer t
         WHERE t.queue_name = end_due.queue_name COLLATE "default" AND t.at <= moment AND t.at > end_due.due_since
         ORDER BY t.at LIMIT end_due.max_messages FOR UPDATE SKIP LOCKED),
    counted AS (
        SELECT n.tid, sum(n.number) OVER (ORDER BY n.at, n.tid) - n.number AS before FROM next n),
    taken AS (
        DELETE FROM messages.timer t
         WHERE t.ctid = ANY (ARRAY(SELECT c.tid FROM counted c WHERE c.before < end_due.max_messages))
        RETURNING t.lock_token, t.ids, t.group_key)
    SELECT array_agg(one.id) FILTER (WHERE one.id IS NOT NULL) AS ids, array_agg(t.lock_token) FILTER (WHERE one.id IS NOT NULL) AS tokens,
           array_agg(DISTINCT t.group_key) FILTER (WHERE t.group_key IS NOT NULL) AS keys, count(*) AS number INTO due
      FROM taken t LEFT JOIN unnest(t.ids) AS one (id) ON true;
    freed := 0;
    archived := 0;
    more := due.number >= end_due.max_messages;
    IF due.keys IS NOT NULL THEN
        entered := messages.next_of_groups(end_due.queue_name, due.keys);
    END IF;
    IF due.ids IS NOT NULL THEN
        -- A message that was leased again since has a timer of its own.
        SELECT array_agg(m.id) FILTER (WHERE its.is_dead) AS dead,
               array_agg(m.id ORDER BY coalesce(m.due_at, m.visible_at), m.id) FILTER (WHERE its.is_dead IS NOT TRUE) AS back
          INTO seen
          FROM unnest(due.ids, due.tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
          JOIN messages.queue q ON q.queue_name = m.queue_name JOIN messages.lane l ON l.queue_name = m.queue_name AND l.priority = m.priority
         CROSS JOIN LATERAL (
            SELECT m.expires_at <= moment
                   OR m.lock_expires_at IS NOT NULL AND m.attempts + (m.lock_token IS NULL)::integer >= q.max_attempts AS is_dead) its
         WHERE CASE WHEN m.lock_expires_at IS NOT NULL THEN m.lock_expires_at <= moment AND (t.lock_token IS NULL OR t.lock_token = m.lock_token)
                    -- The delay of a place is over, or a lease has moved the mark past it.
                    ELSE m.visible_at <= moment AND (m.due_at IS NOT NULL OR m.visible_at < messages.stored_time(l.mark, clock_timestamp())) END
            OR m.expires_at <= moment AND coalesce(m.lock_expires_at <= moment, true);
        gone := messages.archive_ended(end_due.queue_name, seen.dead, moment);
        archived := gone.archived;
        -- A lease that began after this moment may be the last attempt, which nobody has checked.
        entered := entered || gone.entered || messages.give_back(end_due.queue_name, coalesce(seen.back, '{}'), moment);
        -- Messages that are leased for longer by now, or locked by another session, keep a timer.
        WITH kept AS MATERIALIZED (
            SELECT m.queue_name, greatest(m.lock_expires_at, retry_at) AS at, m.lock_token, m.id,
                   coalesce(m.lock_expires_at <= retry_at, true) AS is_locked
              FROM unnest(due.ids, due.tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
             WHERE m.lock_expires_at IS NOT NULL AND t.lock_token IS NOT DISTINCT FROM m.lock_token OR m.expires_at <= moment
                OR m.id = ANY (seen.dead || seen.back) AND m.id <> ALL (entered)),
        timed AS (
            INSERT INTO messages.timer (queue_name, at, lock_token, ids)
            SELECT k.queue_name, k.at, k.lock_token, array_agg(DISTINCT k.id) FROM kept k GROUP BY 1, 2, 3)
        SELECT count(*) FILTER (WHERE k.is_locked) INTO locked FROM kept k;
        -- If all messages are locked, there is no more to do for now.
        more := more AND locked < cardinality(due.ids);
    END IF;
    -- A message that has expired meanwhile does not count: its own timer ends it. Nor does the first message of a group while it is delayed.
    freed := (SELECT count(*) FROM messages.message_rows m
               WHERE m.id = ANY (entered) AND coalesce(m.expires_at > moment, true) AND m.visible_at <= clock_timestamp());
    -- A message whose delay is over, or that nobody has leased since it entered its lane, is ready too.
    ready := coalesce(entered[1], (SELECT m.id FROM messages.message_rows m
                                    WHERE m.id = ANY (due.ids) AND m.visible_at <= moment AND m.lock_expires_at IS NULL LIMIT 1));
    IF ready IS NOT NULL THEN
        PERFORM messages.notify_for(end_due.queue_name, ready);
    END IF;
END $$;
COMMENT ON FUNCTION messages.end_due IS
    'Takes the timers of a queue that fell due after due_since, for about max_messages messages and groups (more if one lease is larger), and checks their messages: archives those that are out of attempts or past their expires_at, gives back the others whose lease has ended, puts those that leases have passed at the mark, and lets the next message of each group in. Returns how many it freed and archived, and whether more may be due.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.repair_lanes(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- Lock first, here and below: an UPDATE that waits for another session has made its sequence already.
    -- A subquery, because PostgreSQL may plan NOT EXISTS as a scan of all relations, for each queue.
    PERFORM FROM messages.queue q
      WHERE q.queue_name = repair_lanes.queue_name COLLATE "default"
        AND ((SELECT c.oid FROM pg_class c WHERE c.oid = q.scan_due) IS NULL
             OR q.rate_limit IS NOT NULL AND (SELECT c.oid FROM pg_class c WHERE c.oid = q.rate_mark) IS NULL)
        FOR NO KEY UPDATE;
    UPDATE messages.queue q SET scan_due = messages.create_mark()
     WHERE q.queue_name = repair_lanes.queue_name COLLATE "default" AND (SELECT c.oid FROM pg_class c WHERE c.oid = q.scan_due) IS NULL;
    UPDATE messages.queue q SET rate_mark = messages.create_mark()
     WHERE q.queue_name = repair_lanes.queue_name COLLATE "default" AND q.rate_limit IS NOT NULL
       AND (SELECT c.oid FROM pg_class c WHERE c.oid = q.rate_mark) IS NULL;
    INSERT INTO messages.lane (queue_name, priority, used)
    SELECT q.queue_name, lacking.priority, lacking.priority = 4 FROM messages.queue q CROSS JOIN generate_series(0, 9) AS lacking (priority)
     WHERE q.queue_name = repair_lanes.queue_name COLLATE "default"
       AND NOT EXISTS (SELECT FROM messages.lane l WHERE l.queue_name = q.queue_name AND l.priority = lacking.priority)
    ON CONFLICT DO NOTHING;
    PERFORM FROM messages.lane l
      WHERE l.queue_name = repair_lanes.queue_name COLLATE "default"
        AND (l.used OR l.mark IS NOT NULL) AND (SELECT c.oid FROM pg_class c WHERE c.oid = l.mark) IS NULL
        FOR NO KEY UPDATE;
    UPDATE messages.lane l SET mark = CASE WHEN l.used THEN messages.create_mark() END
     WHERE l.queue_name = repair_lanes.queue_name COLLATE "default"
       AND (l.used OR l.mark IS NOT NULL) AND (SELECT c.oid FROM pg_class c WHERE c.oid = l.mark) IS NULL;
END $$;
COMMENT ON FUNCTION messages.repair_lanes IS
    'Makes what is missing of the lanes of a queue: only this makes sequences, so that no publisher or consumer does.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.create_mark() RETURNS regclass
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = ''
AS $$
DECLARE
    name text := format('messages.mark_%s', nextval('messages.mark_number'));
BEGIN
    -- The largest value lies within the range of a timestamp.
    EXECUTE format('CREATE SEQUENCE %s MINVALUE -1 MAXVALUE 100000000000000000', name);
    PERFORM messages.keep_private(name::regclass);
    RETURN name::regclass;
END $$;
COMMENT ON FUNCTION messages.create_mark IS 'Creates a sequence that holds a time.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.used_lanes() RETURNS TABLE (queue_name text, priority smallint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- Step from one priority to the next in the index, however many messages each has.
    WITH RECURSIVE level AS (
        (SELECT m.queue_name, m.priority FROM messages.message_rows m ORDER BY m.queue_name, m.priority DESC LIMIT 1)
        UNION ALL
        SELECT next.* FROM level l CROSS JOIN LATERAL (
            (SELECT m.queue_name, m.priority FROM messages.message_rows m
              WHERE m.queue_name = l.queue_name AND m.priority < l.priority ORDER BY m.priority DESC LIMIT 1)
            UNION ALL
            (SELECT m.queue_name, m.priority FROM messages.message_rows m
              WHERE m.queue_name > l.queue_name ORDER BY m.queue_name, m.priority DESC LIMIT 1)
            LIMIT 1) next)
    SELECT l.queue_name, l.priority FROM level l
$$;
COMMENT ON FUNCTION messages.used_lanes IS 'The queues that have messages, with their priorities. Locks no mark.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.drop_unused_sequences() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
DECLARE
    unused record;
BEGIN
    FOR unused IN
        SELECT u.sequence, c.oid IS NOT NULL AS exists
          FROM messages.unused_sequence u LEFT JOIN pg_class c ON c.oid = u.sequence
         WHERE u.since <= clock_timestamp() - interval '1 hour' ORDER BY u.since LIMIT 1000     -- each is locked until the commit
    LOOP
        BEGIN
            IF unused.exists THEN
                EXECUTE format('DROP SEQUENCE %s', unused.sequence);
            END IF;
            DELETE FROM messages.unused_sequence u WHERE u.sequence = unused.sequence;
        EXCEPTION WHEN lock_not_available THEN
            NULL;                          -- a dump reads it: the next maintenance run drops it
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.drop_unused_sequences IS
    'Drops sequences of queues that were dropped more than an hour ago, a thousand at most, except those that somebody reads.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.repair_timers() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made bigint;
BEGIN
    -- A timer that is not needed finds nothing to do when it is due.
    DELETE FROM messages.timer;
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT m.queue_name, greatest(m.due_at, clock_timestamp()), '{}'::bigint[], m.group_key
      FROM messages.message_rows m WHERE m.visible_at = 'infinity';
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT m.queue_name, due.at, due.lock_token, array_agg(m.id)
      FROM messages.message_rows m CROSS JOIN LATERAL (
        VALUES (m.lock_expires_at, m.lock_token), (m.expires_at, NULL),
               (CASE WHEN m.due_at IS NOT NULL THEN nullif(m.visible_at, 'infinity') END, NULL)) due (at, lock_token)
     WHERE due.at IS NOT NULL GROUP BY 1, 2, 3;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.repair_timers IS
    'Makes the timers of all leases, delays, groups and expires_at anew, and returns how many. Reads the whole table; needed only after somebody changed it by hand.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.stored_time(mark regclass, at_most timestamptz DEFAULT 'infinity') RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored timestamptz := 'epoch'::timestamptz + coalesce(pg_sequence_last_value(mark), 0) * interval '1 us';
BEGIN
    RETURN CASE WHEN stored <= at_most THEN stored ELSE 'epoch' END;
END $$;
COMMENT ON FUNCTION messages.stored_time IS
    'The time that a mark holds; 1970 before it was first set, or if it is later than at_most, because the clock went back.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.store_time(mark regclass, at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM setval(mark, greatest(-1, (extract(epoch FROM at) * 1000000)::bigint));
END $$;
COMMENT ON FUNCTION messages.store_time IS
    'Puts a time into a mark: at once and for everybody, even if the transaction rolls back.'
    ' [internal]';
