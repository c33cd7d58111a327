CREATE OR REPLACE FUNCTION messages.finish_partitions(run_id text, partitions jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done  jsonb;
    found jsonb;
BEGIN
    PERFORM messages.check_length('run_id', finish_partitions.run_id, 1, 250, required => true);
    IF jsonb_typeof(finish_partitions.partitions) IS DISTINCT FROM 'object'
       OR EXISTS (SELECT FROM jsonb_each(finish_partitions.partitions) p WHERE p.key !~ '^[0-9]{1,9}$' OR jsonb_typeof(p.value) <> 'number') THEN
        RAISE EXCEPTION 'partitions is not an object with the number of rows of each partition'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON object of the number of rows by the number of the partition.';
    END IF;
    done := messages.lock_publish_run(finish_partitions.run_id) || '{"repeated": true}';
    IF done IS NOT NULL THEN
        RETURN done;
    END IF;
    found := messages.published_partitions(finish_partitions.run_id);
    IF found IS DISTINCT FROM finish_partitions.partitions THEN
        PERFORM messages.raise_other_partitions(finish_partitions.run_id, (
            SELECT format('%s of them, and now %s; the first that differs is partition %s',
                          (SELECT count(*) FROM jsonb_object_keys(found)), count(*) FILTER (WHERE n.value IS NOT NULL),
                          min(key::integer) FILTER (WHERE o.value IS DISTINCT FROM n.value))
              FROM jsonb_each(found) o FULL JOIN jsonb_each(finish_partitions.partitions) n USING (key)));
    END IF;
    WITH gone AS (DELETE FROM messages.published_partition p
                   WHERE p.started_by = session_user AND p.run_id = finish_partitions.run_id RETURNING p.rows, p.published)
    SELECT jsonb_build_object('rows', coalesce(sum(g.rows), 0), 'published', coalesce(sum(g.published), 0),
                              'duplicates', coalesce(sum(g.rows - g.published), 0))
      INTO done FROM gone g;
    UPDATE messages.pipeline_run r SET finished_at = clock_timestamp(), summary = done
     WHERE r.started_by = session_user AND r.run_id = finish_partitions.run_id;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.finish_partitions(text, jsonb) IS
    'Finishes a run whose partitions were published one by one, and returns how many rows they had. Called again, it returns the same with repeated. PQ004: other partitions were published than {partition: rows} says.';
