CREATE OR REPLACE FUNCTION messages.let_in(
    policy messages.queue, keys text[], places smallint[], OUT ids bigint[], OUT entered bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
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
    -- For each place the next that waits. Where a group has one place, its first message keeps its turn, even if somebody has it locked.
    SELECT array_agg(w.id), array_agg(g.place) INTO ids, own
      FROM unnest(keys, places, numbers) AS g (key, place, number)
     CROSS JOIN LATERAL (
        SELECT m.id, m.lock_expires_at FROM messages.message_rows m
         WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
           AND (most = 1 OR m.due_at <= moment AND m.lock_expires_at IS NULL)
         ORDER BY m.requeues DESC, m.id OFFSET coalesce(g.number, 1) - 1 LIMIT 1) w
     WHERE g.place <= most AND coalesce(w.lock_expires_at <= moment, true)       -- leased by plain SQL: its end sees to the group
       -- A limit that was lowered waits until enough have ended.
       AND NOT EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = policy.queue_name AND m.group_key = g.key COLLATE "default" AND m.place > most
                        ORDER BY m.place OFFSET 0)
       AND (policy.on_dead_head <> 'block'
            OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = policy.queue_name AND d.group_key = g.key COLLATE "default"));
    entered := CASE WHEN ids IS NULL THEN '{}' ELSE messages.enter(policy.queue_name, ids, own,
        CASE WHEN policy.fair_by IS NOT NULL THEN messages.fair_turns(policy.queue_name, ids) END) END;
END $$;
COMMENT ON FUNCTION messages.let_in(messages.queue, text[], smallint[]) IS
    'Lets the next message that waits in each of these groups into its lane, at this place of its group. Nothing enters a group that a dead message blocks. Returns the ids of those whose turn it is, and of those that entered, because no other session has them locked.';
