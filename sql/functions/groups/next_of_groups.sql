CREATE OR REPLACE FUNCTION messages.next_of_groups(queue_name text, keys text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
BEGIN
    ids := ARRAY(
        SELECT m.id FROM unnest(keys) AS g (key)
         CROSS JOIN LATERAL (
            SELECT m.id FROM messages.message_rows m
             WHERE m.queue_name = next_of_groups.queue_name COLLATE "default" AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) m);
    PERFORM messages.come_back(next_of_groups.queue_name, ids);
END $$;
COMMENT ON FUNCTION messages.next_of_groups(text, text[]) IS
    'Makes the first message ready that waits in each of these groups; leaves one that another session has locked to the next look. Whoever leases it judges whether its turn has come.';
