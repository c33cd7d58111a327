CREATE OR REPLACE FUNCTION messages.begin_partitions(run_id text, queue_name text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_length('run_id', begin_partitions.run_id, 1, 250, required => true);
    PERFORM messages.check_queue(begin_partitions.queue_name, 'publish') WHERE begin_partitions.queue_name IS NOT NULL;
    IF messages.begin_publish_run(begin_partitions.run_id, begin_partitions.queue_name, by_partition => true) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    RETURN messages.published_partitions(begin_partitions.run_id);
END $$;
COMMENT ON FUNCTION messages.begin_partitions(text, text) IS
    'Begins or continues a run whose partitions are published one by one: returns {partition: rows} of those that are published already, or NULL if the run has finished. PQ001: unknown queue; PQ004: bad name, another pipeline''s run, or one that has published to another queue.';
