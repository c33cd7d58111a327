CREATE OR REPLACE FUNCTION messages.make_next_of_missed_groups_ready(queue_name text) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FILTER (WHERE messages.make_next_of_group_ready(g.queue_name, g.group_key))
      FROM (SELECT DISTINCT w.queue_name, w.group_key FROM messages.group_without_head w
             WHERE w.queue_name = make_next_of_missed_groups_ready.queue_name LIMIT 1000) g
$$;
COMMENT ON FUNCTION messages.make_next_of_missed_groups_ready(text) IS 'Makes the next message ready in the groups whose head was finished while a publisher held their lock; returns in how many.';
