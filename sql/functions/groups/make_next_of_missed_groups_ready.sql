CREATE OR REPLACE FUNCTION messages.make_next_of_missed_groups_ready(queue_name text, max_groups integer DEFAULT 1000) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH missed AS (
        DELETE FROM messages.group_without_head WHERE id = ANY (ARRAY(
            SELECT w.id FROM messages.group_without_head w WHERE w.queue_name = make_next_of_missed_groups_ready.queue_name
             ORDER BY w.id LIMIT max_groups FOR UPDATE SKIP LOCKED))
        RETURNING queue_name, group_key)
    SELECT count(*) FILTER (WHERE messages.make_next_of_group_ready(g.queue_name, g.group_key, NULL))
      FROM (SELECT DISTINCT m.queue_name, m.group_key FROM missed m) g
$$;
COMMENT ON FUNCTION messages.make_next_of_missed_groups_ready(text, integer) IS 'Makes the next message ready in the groups whose head was finished while somebody published to them; returns in how many.';
