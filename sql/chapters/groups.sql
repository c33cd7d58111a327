-- Groups, turns and limits: who comes next, and how much.
--
-- A lease knows nothing of groups and turns: they decide whether a message is in its lane, and at which place.
--
-- Groups: a group has one place in its lane, or max_leased_per_group places. A transaction that frees a place lets the next message
-- of the group in (next_of_groups, let_in). fill_groups finds places that plain SQL left free.
-- Turns: in a queue with fair_by, a message gets the next place of its key in the lane (fair_places), so that keys take turns.
-- Limits: leases_left counts leases for max_leased. spend_rate keeps the rate_limit in a sequence, by GCRA.
--
-- Tables: none.

CREATE OR REPLACE FUNCTION messages.join_groups(queue_name text, ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    UPDATE messages.message_rows m SET place = NULL, visible_at = 'infinity', due_at = coalesce(greatest(m.due_at, nullif(m.visible_at, 'infinity')), m.created_at)
     WHERE m.id = ANY (ids) AND m.group_key IS NOT NULL AND m.lock_expires_at IS NULL;
    -- One timer is due now, another at the end of a delay: in a group with several places, a delayed message enters its lane only then.
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT join_groups.queue_name, due.at, '{}'::bigint[], m.group_key
      FROM messages.message_rows m CROSS JOIN LATERAL (VALUES (moment), (m.due_at)) AS due (at)
     WHERE m.id = ANY (ids) AND m.group_key IS NOT NULL AND m.lock_expires_at IS NULL AND due.at >= moment;
END $$;
COMMENT ON FUNCTION messages.join_groups IS
    'Lets messages that have a group wait in it, outside of their lanes, and sets timers that let the next of each group in. Leaves out leased messages.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.next_of_groups(queue_name text, keys text[], places smallint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    policy  messages.queue;
    is_old  CONSTANT boolean := current_setting('transaction_isolation') <> 'read committed';
    turn    record;
    entered bigint[] := '{}';
    mine    text[];
    free    record;
BEGIN
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = next_of_groups.queue_name COLLATE "default";
    IF NOT FOUND THEN                      -- dropped since the caller took a timer
        RETURN '{}';
    END IF;
    IF places IS NOT NULL THEN
        IF is_old THEN                     -- this snapshot may be too old to see waiting messages
            PERFORM messages.set_group_timers(policy.queue_name, keys);
        END IF;
        -- The caller has freed these places, so it may pass them on.
        turn := messages.let_in(policy, keys, places);
        IF cardinality(turn.entered) = cardinality(keys) THEN       -- mostly
            RETURN turn.entered;
        END IF;
        entered := turn.entered;
    END IF;
    -- To find a free place, lock the group until the commit and read it in a new snapshot: the next session sees what this one did.
    -- No session waits for that lock: a timer tries again.
    keys := ARRAY(SELECT DISTINCT unnest(keys));
    SELECT coalesce(array_agg(g.key) FILTER (WHERE g.is_mine), '{}') INTO mine FROM (
        SELECT k.key, pg_try_advisory_xact_lock(policy.lock_key, hashtext(k.key) & 1023) AS is_mine
          FROM unnest(keys) AS k (key) OFFSET 0) g;
    IF cardinality(mine) < cardinality(keys) THEN
        PERFORM messages.set_group_timers(policy.queue_name, ARRAY(SELECT unnest(keys) EXCEPT SELECT unnest(mine)));
    END IF;
    SELECT array_agg(g.key) AS keys, array_agg(p.place::smallint) AS places INTO free
      FROM unnest(mine) AS g (key)
     CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT FROM messages.message_rows m
             WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
             LIMIT policy.max_leased_per_group) w) waiting
     CROSS JOIN LATERAL (
        SELECT p.place FROM generate_series(1, CASE WHEN waiting.number > 0 THEN policy.max_leased_per_group ELSE 0 END) AS p (place)
         WHERE p.place <> ALL (ARRAY(           -- only the index of the places has this order; another plan reads all waiting messages
                SELECT m.place FROM messages.message_rows m
                 WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.place IS NOT NULL ORDER BY m.place))
         LIMIT waiting.number) p;
    IF free.keys IS NOT NULL THEN
        IF is_old THEN
            BEGIN
                turn := messages.let_in(policy, free.keys, free.places);
            EXCEPTION WHEN unique_violation THEN
                RAISE EXCEPTION 'a group of queue % has changed since this transaction began', quote_literal(policy.queue_name)
                    USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
            END;
        ELSE
            turn := messages.let_in(policy, free.keys, free.places);
        END IF;
        entered := entered || turn.entered;
        IF cardinality(turn.entered) < cardinality(turn.ids) THEN
            PERFORM messages.set_group_timers(policy.queue_name, ARRAY(
                SELECT m.group_key FROM messages.message_rows m WHERE m.id = ANY (turn.ids) AND m.id <> ALL (turn.entered)));
        END IF;
    END IF;
    IF is_old THEN                         -- this snapshot may also be too old to see a free place
        PERFORM messages.set_group_timers(policy.queue_name, ARRAY(
            SELECT DISTINCT m.group_key FROM messages.message_rows m
             WHERE m.queue_name = policy.queue_name AND m.group_key = ANY (mine) AND m.visible_at = 'infinity'), clock_timestamp() + interval '250 ms');
    END IF;
    RETURN entered;
END $$;
COMMENT ON FUNCTION messages.next_of_groups IS
    'Lets the next messages of these groups into their lanes: as many as there are free places. With places, the caller has ended messages of these groups; a place that it has freed is passed on; other free places are searched for. Where another session is doing this for a group, a timer does it later. Returns those that entered. Does not notify.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.let_in(
    policy messages.queue, keys text[], places smallint[], OUT ids bigint[], OUT entered bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    most    integer     := policy.max_leased_per_group;
    own     smallint[];
    numbers bigint[];
BEGIN
    IF most > 1 THEN
        numbers := ARRAY(SELECT row_number() OVER (PARTITION BY g.key ORDER BY g.n) FROM unnest(keys) WITH ORDINALITY AS g (key, n) ORDER BY g.n);
    END IF;
    -- For each place, the next waiting message. In a group with one place, the first message keeps its turn, even while it is locked.
    SELECT array_agg(w.id), array_agg(g.place) INTO ids, own
      FROM unnest(keys, places, numbers) AS g (key, place, number)
     CROSS JOIN LATERAL (
        SELECT m.id, m.lock_expires_at FROM messages.message_rows m
         WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
           AND (most = 1 OR m.due_at <= moment AND m.lock_expires_at IS NULL)
         ORDER BY m.requeues DESC, m.id OFFSET coalesce(g.number, 1) - 1 LIMIT 1) w
     WHERE g.place <= most AND w.lock_expires_at IS NULL       -- or plain SQL leases it: the end of that lease sees to the group
       -- After the limit was lowered, no message enters until enough have left.
       AND NOT EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.place > most
                        ORDER BY m.place OFFSET 0)
       AND (policy.on_dead_head <> 'block'
            OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = policy.queue_name AND d.group_key = g.key COLLATE "default"));
    entered := CASE WHEN ids IS NULL THEN '{}' ELSE messages.enter(policy.queue_name, ids, own,
        CASE WHEN policy.fair_by IS NOT NULL THEN messages.fair_turns(policy.queue_name, ids) END, ended_by => '-infinity') END;
END $$;
COMMENT ON FUNCTION messages.let_in IS
    'Lets the next message that waits in each of these groups into its lane, at this place of its group. Nothing enters a group that a dead message blocks. Returns the ids of those whose turn it is, and of those that entered, because no other session has them locked.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.set_group_timers(queue_name text, keys text[], at timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Each group has a row of its own, so that a session that serves one group holds up no other.
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT set_group_timers.queue_name, coalesce(set_group_timers.at, clock_timestamp() + interval '10 ms'), '{}', g.key
      FROM (SELECT DISTINCT unnest(keys) AS key) g;
    IF keys <> '{}' THEN
        PERFORM messages.notify_for(set_group_timers.queue_name, 0);
    END IF;
END $$;
COMMENT ON FUNCTION messages.set_group_timers IS
    'Sets a timer for each of these groups, due in 10 ms by default, and notifies.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fill_groups(queue_name text, max_groups integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    keys   text[];
BEGIN
    -- Step from one group to the next in the index, however many messages each has. Waiting messages lie at the end of their group; the
    -- order of the places lets the planner read the index of the places, and not all waiting messages.
    WITH RECURSIVE first AS (
        (SELECT m.group_key, m.visible_at, m.lock_expires_at FROM messages.message_rows m
          WHERE m.queue_name = fill_groups.queue_name COLLATE "default" AND m.group_key IS NOT NULL
          ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1)
        UNION ALL
        SELECT next.* FROM first f CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at, m.lock_expires_at FROM messages.message_rows m
             WHERE m.queue_name = fill_groups.queue_name COLLATE "default" AND m.group_key > f.group_key
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) next)
    SELECT array_agg(roomy.group_key) INTO keys FROM (
        SELECT f.group_key FROM first f JOIN messages.queue q ON q.queue_name = fill_groups.queue_name COLLATE "default"
         WHERE CASE
               -- In a group with one place, the first message waits if the place is free.
               WHEN q.max_leased_per_group = 1 THEN f.visible_at = 'infinity' AND f.lock_expires_at IS NULL
               -- After the limit was lowered, a place above it keeps the group closed, as in let_in.
               ELSE (SELECT count(*) < q.max_leased_per_group AND coalesce(max(taken.place) <= q.max_leased_per_group, true) FROM (
                         SELECT m.place FROM messages.message_rows m
                          WHERE m.queue_name = q.queue_name AND m.group_key = f.group_key AND m.place IS NOT NULL
                          ORDER BY m.place LIMIT q.max_leased_per_group) taken)
                    AND EXISTS (SELECT FROM messages.message_rows m
                                 WHERE m.queue_name = q.queue_name AND m.group_key = f.group_key AND m.visible_at = 'infinity'
                                   AND m.due_at <= moment AND m.lock_expires_at IS NULL) END
           AND (q.on_dead_head <> 'block'
                OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = q.queue_name AND d.group_key = f.group_key))
         LIMIT fill_groups.max_groups) roomy;
    RETURN CASE WHEN keys IS NOT NULL THEN messages.next_of_groups(fill_groups.queue_name, keys) ELSE '{}' END;
END $$;
COMMENT ON FUNCTION messages.fill_groups IS
    'Lets messages into groups of a queue that have a free place, at most max_groups groups, and returns the ids that entered. Only plain SQL that deletes messages, and a new policy, leave such places. Does not notify.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fair_places(queue_name text, priority integer, keys text[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Without statistics the planner would sort all of the lane to find the last message of a key.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    front CONSTANT timestamptz := coalesce(messages.fair_front(fair_places.queue_name, fair_places.priority), clock_timestamp());
BEGIN
    -- A turn of all keys takes 32 microseconds of the lane. Each key has one of the 32, by its hash: its places lie own + n * 32
    -- microseconds after the epoch. A message gets the first place of its key that lies behind the front and behind the last message of
    -- the key; the messages after it get the next places.
    RETURN ARRAY(
        SELECT 'epoch'::timestamptz + (turn.own + (turn.next + turn.nth) * 32) * interval '1 us'
          FROM (SELECT last.number, last.nth, last.own,
                       ((extract(epoch FROM greatest(front, max(last.at) OVER (PARTITION BY last.key))) * 1000000)::bigint
                        - last.own + 32) / 32 AS next
                  FROM (SELECT k.*, m.at
                          FROM (SELECT given.key, given.number, hashtext(given.key) & 31 AS own,
                                       row_number() OVER (PARTITION BY given.key ORDER BY given.number) - 1 AS nth
                                  FROM unnest(keys) WITH ORDINALITY AS given (key, number)) k
                          -- One step in the index for each key. A place more than a minute ahead does not count.
                          LEFT JOIN LATERAL (
                            SELECT coalesce(m.due_at, m.visible_at) AS at FROM messages.message_rows m
                             WHERE k.nth = 0 AND m.queue_name = fair_places.queue_name COLLATE "default" AND m.fair_key = k.key COLLATE "default"
                               AND m.priority = fair_places.priority AND m.visible_at < 'infinity' AND coalesce(m.due_at, m.visible_at) > front
                               AND coalesce(m.due_at, m.visible_at) <= front + interval '1 min'
                             ORDER BY coalesce(m.due_at, m.visible_at) DESC LIMIT 1) m ON true) last) turn
         ORDER BY turn.number);
END $$;
COMMENT ON FUNCTION messages.fair_places IS
    'The places in a lane for messages of these keys, in this order, so that keys take turns: each message gets the next place of its key behind the front of the lane and behind the last message of the key. Does not see what others have not committed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fair_front(queue_name text, priority integer) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    begins CONSTANT timestamptz := coalesce((SELECT messages.stored_time(l.mark, moment) FROM messages.lane l
                                              WHERE l.queue_name = fair_front.queue_name COLLATE "default" AND l.priority = fair_front.priority), 'epoch');
BEGIN
    RETURN (SELECT m.visible_at FROM messages.message_rows m
             WHERE m.queue_name = fair_front.queue_name COLLATE "default" AND m.priority = fair_front.priority
               AND m.visible_at >= begins AND m.visible_at <= moment AND m.lock_expires_at IS NULL
             ORDER BY m.visible_at LIMIT 1);
END $$;
COMMENT ON FUNCTION messages.fair_front IS
    'The place of the first ready message of a lane, from which turns are counted; NULL if none is ready. The mark of the lane may lie before it, by as many turns as the last lease had messages.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fair_turns(queue_name text, ids bigint[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    lane   record;
    places timestamptz[];
    turns  timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(ids)]);
BEGIN
    FOR lane IN
        SELECT m.priority, array_agg(m.fair_key ORDER BY e.number) AS keys, array_agg(e.number ORDER BY e.number) AS numbers
          FROM unnest(ids) WITH ORDINALITY AS e (id, number) JOIN messages.message_rows m ON m.id = e.id
         WHERE m.fair_key IS NOT NULL AND m.due_at <= moment GROUP BY m.priority
    LOOP
        places := messages.fair_places(fair_turns.queue_name, lane.priority, lane.keys);
        FOR nth IN 1 .. cardinality(places) LOOP
            turns[lane.numbers[nth]] := places[nth];
        END LOOP;
    END LOOP;
    RETURN turns;
END $$;
COMMENT ON FUNCTION messages.fair_turns IS
    'The places of messages that have waited in their groups, where keys take turns: the next places of their keys. NULL for a message without a key, or with a delay.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fair_keys(fair_by text, number integer, headers jsonb, topics text[], group_keys text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT left(coalesce(headers ->> 'fair_key',
                             CASE fair_by WHEN 'group' THEN group_keys[nth] WHEN 'topic' THEN split_part(topics[nth], '.', 1) END, ''), 255)
          FROM generate_series(1, number) AS nth ORDER BY nth)
$$;
COMMENT ON FUNCTION messages.fair_keys IS
    'The keys under which the messages of one publish take turns: the header fair_key, or else the group or the first word of the topic, as fair_by says; an empty text for a message that has neither.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.leases_left(queue_name text, max_leased integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.lock_queue(leases_left.queue_name);
    RETURN greatest(0, leases_left.max_leased - (
        SELECT count(*) FROM messages.message_rows m
         WHERE m.id = ANY (ARRAY(SELECT unnest(t.ids) FROM messages.timer t WHERE t.queue_name = leases_left.queue_name COLLATE "default"))
           AND m.lock_expires_at > clock_timestamp()));
END $$;
COMMENT ON FUNCTION messages.leases_left IS
    'How many more messages of a queue with a max_leased may be leased; keeps other leases of this queue out until the commit. PQ016: a transaction that leased from it stays open.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.limited_until(policy messages.queue, moment timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN greatest(
        (SELECT r.next_at FROM messages.rate_left(policy, moment) r WHERE policy.rate_limit IS NOT NULL AND r.leases = 0),
        -- After the limit was lowered, several leases have to end before the next one begins.
        (SELECT m.lock_expires_at FROM messages.message_rows m
          WHERE policy.max_leased IS NOT NULL
            AND m.id = ANY (ARRAY(SELECT unnest(t.ids) FROM messages.timer t WHERE t.queue_name = policy.queue_name))
            AND m.lock_expires_at > moment
          ORDER BY m.lock_expires_at DESC OFFSET policy.max_leased - 1 LIMIT 1));
END $$;
COMMENT ON FUNCTION messages.limited_until IS
    'When the rate_limit and the max_leased of a queue allow the next lease, if no lease is extended or ended before; NULL if they allow one at that time.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.rate_left(
    policy messages.queue, moment timestamptz, OUT leases bigint, OUT next_at timestamptz, OUT spent timestamptz, OUT step interval
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Without a mark the rate allows no lease; maintenance makes the mark again.
    SELECT b.* INTO spent, leases, next_at, step
      FROM messages.token_bucket(CASE WHEN policy.rate_mark IS NOT NULL THEN messages.stored_time(policy.rate_mark) END,
                                 moment, policy.rate_limit, policy.rate_period, policy.rate_burst) b;
END $$;
COMMENT ON FUNCTION messages.rate_left IS
    'How many more messages the rate_limit of a queue allows to be leased at that time, and when it allows one more than these. It is used up to spent, and each lease uses up one step more.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.token_bucket(
    INOUT spent timestamptz, moment timestamptz, number integer, period interval, burst integer,
    OUT leases bigint, OUT next_at timestamptz, OUT step interval
)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room interval;
BEGIN
    step := ceil(extract(epoch FROM period) * 1000000 / number) * interval '1 us';
    room := burst * step;
    -- A time too far ahead was stored before the clock went back, or before the policy changed.
    IF spent NOT BETWEEN moment AND moment + room THEN
        spent := moment;
    END IF;
    spent := coalesce(spent, moment + room);
    leases := floor(extract(epoch FROM moment + room - spent) / extract(epoch FROM step));
    next_at := spent + (leases + 1) * step - room;
END $$;
COMMENT ON FUNCTION messages.token_bucket IS
    'How many leases a rate allows at that time, and when it allows one more than these: number leases in each period, and burst leases after a pause. spent is the time up to which the rate is used up, NULL if all of it is; each lease uses up one step more.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.spend_rate(policy messages.queue, INOUT wanted integer, OUT moment timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
DECLARE
    rate record;
BEGIN
    -- The error below rolls back the subtransaction of this block. That ends the lock, so that nobody holds it from one statement to the
    -- next; what was stored in the sequence stays.
    PERFORM pg_advisory_xact_lock(policy.lock_key, -2);
    moment := clock_timestamp();
    rate := messages.rate_left(policy, moment);
    wanted := least(wanted, rate.leases);
    IF wanted > 0 THEN
        PERFORM messages.store_time(policy.rate_mark, rate.spent + wanted * rate.step);
    END IF;
    RAISE EXCEPTION 'done';
EXCEPTION
    WHEN raise_exception THEN
        NULL;
    WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('the rate_limit of queue %L', policy.queue_name));
END $$;
COMMENT ON FUNCTION messages.spend_rate IS
    'Uses up what the rate_limit of a queue allows, but no more than is wanted, and returns how many messages may be leased, and at which time. What is used up stays used up, even if the transaction rolls back. PQ016: another session has been in the middle of this for more than three seconds.'
    ' [internal]';
