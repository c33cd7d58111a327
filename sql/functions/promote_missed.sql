CREATE OR REPLACE FUNCTION messages.promote_missed(queue_name text) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FILTER (WHERE messages.promote(g.queue_name, g.group_key))
      FROM (SELECT w.queue_name, w.group_key FROM messages.group_without_head w
             WHERE w.queue_name = promote_missed.queue_name LIMIT 1000) g
$$;
COMMENT ON FUNCTION messages.promote_missed(text) IS 'Internal. Promotes in the groups whose head was finished while a publisher held their lock.';
