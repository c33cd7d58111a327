CREATE OR REPLACE FUNCTION messages.next_of_groups(queue_name text, keys text[], places smallint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
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
    IF places IS NOT NULL THEN
        IF is_old THEN                     -- this snapshot may be too old to see what waits
            PERFORM messages.set_group_timers(policy.queue_name, keys);
        END IF;
        -- The caller has freed these places, so they are his to give.
        turn := messages.let_in(policy, keys, places);
        IF cardinality(turn.entered) = cardinality(keys) THEN       -- mostly
            RETURN turn.entered;
        END IF;
        entered := turn.entered;
    END IF;
    -- For a place that nobody has, the group is locked until the commit, and looked at in a new snapshot: whoever comes next sees what
    -- this one did. Nobody waits for that lock: a timer looks again.
    SELECT coalesce(array_agg(g.key) FILTER (WHERE g.is_mine), '{}') INTO mine FROM (
        SELECT k.key, pg_try_advisory_xact_lock(policy.lock_key, hashtext(k.key) & 1023) AS is_mine
          FROM (SELECT DISTINCT unnest(keys) AS key) k OFFSET 0) g;
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
         WHERE p.place <> ALL (ARRAY(           -- in an order that only the index of the places has, else it may read all that waits
                SELECT m.place FROM messages.message_rows m
                 WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.place IS NOT NULL ORDER BY m.place))
         LIMIT waiting.number) p;
    IF free.keys IS NOT NULL THEN
        turn := messages.let_in(policy, free.keys, free.places);
        entered := entered || turn.entered;
        IF cardinality(turn.entered) < cardinality(turn.ids) THEN
            PERFORM messages.set_group_timers(policy.queue_name, ARRAY(
                SELECT m.group_key FROM messages.message_rows m WHERE m.id = ANY (turn.ids) AND m.id <> ALL (turn.entered)));
        END IF;
    END IF;
    IF is_old THEN                         -- or too old to see that a place is free by now
        INSERT INTO messages.timer (queue_name, at, ids, group_key)
        SELECT DISTINCT policy.queue_name, clock_timestamp() + interval '250 ms', '{}'::bigint[], m.group_key FROM messages.message_rows m
         WHERE m.queue_name = policy.queue_name AND m.group_key = ANY (mine) AND m.visible_at = 'infinity';
    END IF;
    RETURN entered;
END $$;
COMMENT ON FUNCTION messages.next_of_groups(text, text[], smallint[]) IS
    'Lets the next messages of these groups into their lanes: as many as there are free places. With places, the caller has ended messages of these groups; a place that it has freed is given on; other places are looked for. Where another session is doing this for a group, a timer does it later. Returns those that entered. Does not ring.';
