CREATE OR REPLACE FUNCTION messages.free_group_heads(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    most   integer     := (SELECT q.max_leased_per_group FROM messages.queue q WHERE q.queue_name = free_group_heads.queue_name COLLATE "default");
BEGIN
    -- Step from one group to the next in the index, however many messages each has, to those of which fewer messages are leased or ready
    -- than may be.
    PERFORM messages.next_of_groups(free_group_heads.queue_name, free.keys) FROM (
        WITH RECURSIVE head AS (
            (SELECT m.group_key, m.visible_at FROM messages.message_rows m
              WHERE m.queue_name = free_group_heads.queue_name COLLATE "default" AND m.group_key IS NOT NULL
              ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1)
            UNION ALL
            SELECT next.* FROM head h CROSS JOIN LATERAL (
                SELECT m.group_key, m.visible_at FROM messages.message_rows m
                 WHERE m.queue_name = free_group_heads.queue_name COLLATE "default" AND m.group_key > h.group_key
                 ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) next)
        SELECT array_agg(h.group_key) AS keys FROM head h CROSS JOIN LATERAL (
            SELECT m.id, m.requeues FROM messages.message_rows m
             WHERE m.queue_name = free_group_heads.queue_name COLLATE "default" AND m.group_key = h.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next
         WHERE (h.visible_at > moment OR most > 1)
           AND NOT EXISTS (SELECT FROM messages.message_rows m
                            WHERE most = 1 AND m.queue_name = free_group_heads.queue_name COLLATE "default" AND m.group_key = h.group_key
                              AND m.visible_at < 'infinity' AND (m.requeues > next.requeues OR m.requeues = next.requeues AND m.id < next.id))
           AND NOT EXISTS (SELECT FROM messages.dead_message d JOIN messages.queue q ON q.queue_name = d.queue_name
                            WHERE d.queue_name = free_group_heads.queue_name COLLATE "default" AND d.group_key = h.group_key AND q.on_dead_head = 'block')) free
      WHERE free.keys IS NOT NULL;
END $$;
COMMENT ON FUNCTION messages.free_group_heads(text) IS
    'Makes the next message ready in each group of a queue of which none is leased or ready, unless a delayed message goes before it or a dead one blocks it: the message before it was finished while another session put it behind. Where max_leased_per_group is above 1, makes as many ready as there is room for.';
