CREATE OR REPLACE FUNCTION messages.fill_groups(queue_name text, max_groups integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    keys text[];
BEGIN
    -- From one group to the next in the index, however many messages each has. What waits lies at the end of its group; the order of the
    -- places lets the planner read the index of the places, and not all that waits.
    WITH RECURSIVE first AS (
        (SELECT m.group_key, m.visible_at FROM messages.message_rows m
          WHERE m.queue_name = fill_groups.queue_name COLLATE "default" AND m.group_key IS NOT NULL
          ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1)
        UNION ALL
        SELECT next.* FROM first f CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at FROM messages.message_rows m
             WHERE m.queue_name = fill_groups.queue_name COLLATE "default" AND m.group_key > f.group_key
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) next)
    SELECT array_agg(roomy.group_key) INTO keys FROM (
        SELECT f.group_key FROM first f JOIN messages.queue q ON q.queue_name = fill_groups.queue_name COLLATE "default"
         WHERE (f.visible_at = 'infinity' OR q.max_leased_per_group > 1 AND q.max_leased_per_group > (
                  SELECT count(*) FROM (
                    SELECT m.place FROM messages.message_rows m
                     WHERE m.queue_name = q.queue_name AND m.group_key = f.group_key AND m.place IS NOT NULL
                     ORDER BY m.place LIMIT q.max_leased_per_group) taken))
           AND EXISTS (SELECT FROM messages.message_rows m
                        WHERE m.queue_name = q.queue_name AND m.group_key = f.group_key AND m.visible_at = 'infinity'
                          AND (q.max_leased_per_group = 1 OR m.due_at <= clock_timestamp()))
           AND (q.on_dead_head <> 'block'
                OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = q.queue_name AND d.group_key = f.group_key))
         LIMIT fill_groups.max_groups) roomy;
    RETURN CASE WHEN keys IS NOT NULL THEN messages.next_of_groups(fill_groups.queue_name, keys) ELSE '{}' END;
END $$;
COMMENT ON FUNCTION messages.fill_groups(text, integer) IS
    'Lets messages into groups of a queue that have a free place, so many groups at most, and returns those that entered. Only plain SQL that deletes messages, and a new policy, leave such places. Does not ring.';
