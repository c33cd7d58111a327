CREATE OR REPLACE FUNCTION messages.next_of_groups(queue_name text, keys text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    ids    bigint[];
BEGIN
    ids := ARRAY(
        SELECT m.id FROM messages.queue q
         CROSS JOIN unnest(keys) AS g (key)
         CROSS JOIN LATERAL (
            SELECT m.id FROM messages.message_rows m
             WHERE m.queue_name = q.queue_name AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id
             -- No more than there is room for: each that comes back in vain has to be put behind once more.
             LIMIT CASE WHEN q.max_leased_per_group = 1 THEN 1 ELSE q.max_leased_per_group - (
                SELECT count(*) FROM (
                    SELECT FROM messages.message_rows e
                     WHERE e.queue_name = q.queue_name AND e.group_key = g.key COLLATE "default" AND e.visible_at <= moment
                     LIMIT q.max_leased_per_group) entered) END) m
         WHERE q.queue_name = next_of_groups.queue_name COLLATE "default");
    PERFORM messages.come_back(next_of_groups.queue_name, ids);
END $$;
COMMENT ON FUNCTION messages.next_of_groups(text, text[]) IS
    'Makes the first messages ready that wait in each of these groups, as many as there is room for, except those that another session has locked, which the next look makes ready. Whoever leases them judges whether their turn has come.';
