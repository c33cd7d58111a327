CREATE OR REPLACE FUNCTION messages.make_next_of_missed_groups_ready(queue_name text, max_groups integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    is_late boolean := current_setting('transaction_isolation') NOT LIKE 'read %';
    missed  text[];
    orphans text[];
    started text[];
    later   text[];
BEGIN
    WITH missed AS (
        DELETE FROM messages.group_without_head WHERE id = ANY (ARRAY(
            SELECT w.id FROM messages.group_without_head w WHERE w.queue_name = make_next_of_missed_groups_ready.queue_name COLLATE "default"
               -- A transaction that does not see what was committed since it began cannot tell that a group has ended.
               AND (NOT is_late OR (SELECT true FROM messages.group_follower f
                                     WHERE f.group_hash = hashtextextended(w.group_key, hashtextextended(w.queue_name, 0))
                                       AND f.queue_name = w.queue_name AND f.group_key = w.group_key LIMIT 1))
             ORDER BY w.id LIMIT max_groups FOR UPDATE SKIP LOCKED))
        RETURNING group_key)
    SELECT array_agg(DISTINCT m.group_key) INTO missed FROM missed m;
    IF missed IS NULL THEN
        RETURN 0;
    END IF;
    -- Where a transaction is finishing the last message, what it leaves cannot be seen yet.
    later := ARRAY(
        SELECT g.key FROM unnest(missed) AS g (key)
         WHERE NOT pg_try_advisory_xact_lock_shared(messages.group_lock_key(make_next_of_missed_groups_ready.queue_name, g.key)));
    -- Whoever was starting the group rolled back, or was too late for the last message of it.
    orphans := ARRAY(
        SELECT g.key FROM unnest(missed) AS g (key)
         WHERE g.key <> ALL (later)
           AND NOT EXISTS (SELECT FROM messages.group_head h
                            WHERE h.queue_name = make_next_of_missed_groups_ready.queue_name COLLATE "C" AND h.group_key = g.key COLLATE "C")
           AND EXISTS (SELECT FROM messages.group_follower f
                        WHERE f.group_hash = hashtextextended(g.key, hashtextextended(make_next_of_missed_groups_ready.queue_name, 0))
                          AND f.queue_name = make_next_of_missed_groups_ready.queue_name COLLATE "default" AND f.group_key = g.key COLLATE "default"));
    WHILE orphans <> '{}' LOOP
        started := messages.start_groups(make_next_of_missed_groups_ready.queue_name, orphans[:50], NULL);
        later := later || ARRAY(SELECT o.key FROM unnest(orphans[:50]) AS o (key) WHERE o.key <> ALL (started));
        -- It waited, and consumers wait for this: one pause is enough.
        later := later || CASE WHEN cardinality(started) < least(cardinality(orphans), 50) THEN orphans[51:] END;
        orphans := CASE WHEN cardinality(started) = 50 THEN orphans[51:] ELSE '{}' END;
    END LOOP;
    INSERT INTO messages.group_without_head (queue_name, group_key)
    SELECT make_next_of_missed_groups_ready.queue_name, l.key FROM unnest(later) AS l (key);
    RETURN (SELECT count(*) FILTER (WHERE messages.make_next_of_group_ready(make_next_of_missed_groups_ready.queue_name, g.key, NULL))
              FROM unnest(missed) AS g (key) WHERE g.key <> ALL (later));
END $$;
COMMENT ON FUNCTION messages.make_next_of_missed_groups_ready(text, integer) IS
    'Makes the next message ready in the groups whose head was finished while somebody published to them, or that several transactions began; returns in how many.';
