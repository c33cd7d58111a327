CREATE OR REPLACE FUNCTION messages.published_partitions(run_id text) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_object_agg(p.partition, p.rows), '{}') FROM messages.published_partition p
     WHERE p.started_by = session_user AND p.run_id = published_partitions.run_id
$$;
COMMENT ON FUNCTION messages.published_partitions(text) IS 'The partitions of a run that are published, as {partition: rows}.';
