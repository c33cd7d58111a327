CREATE OR REPLACE FUNCTION messages.begin_publish_run(run_id text, queue_name text, by_partition boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done jsonb := messages.lock_publish_run(begin_publish_run.run_id);
    was  text;
    many bigint;
BEGIN
    IF begin_publish_run.run_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- A run that has published nothing may still publish to another queue.
    UPDATE messages.pipeline_run r SET queue_name = begin_publish_run.queue_name
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id AND r.finished_at IS NULL
       AND NOT EXISTS (SELECT FROM messages.published_partition p WHERE p.started_by = r.started_by AND p.run_id = r.run_id);
    SELECT r.queue_name INTO was FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id;
    IF was IS DISTINCT FROM begin_publish_run.queue_name THEN
        RAISE EXCEPTION 'run % has published to %, not to %', quote_literal(begin_publish_run.run_id),
                        coalesce('queue ' || quote_literal(was), 'the queues that its rows named'),
                        coalesce('queue ' || quote_literal(begin_publish_run.queue_name), 'the queues that its rows name')
            USING ERRCODE = 'PQ004', HINT = 'Give each run a name of its own.';
    END IF;
    -- Until the run has finished, it has to go on partition by partition. After that it publishes nothing, however it is run.
    SELECT count(*) INTO many FROM messages.published_partition p
     WHERE p.started_by = session_user AND p.run_id = begin_publish_run.run_id;
    IF many > 0 AND NOT begin_publish_run.by_partition THEN
        RAISE EXCEPTION 'run % publishes its partitions one by one; published so far: %', quote_literal(begin_publish_run.run_id), many
            USING ERRCODE = 'PQ004', HINT = 'Run it again with commitPer partition, as before, or give a run of other rows another name.';
    END IF;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.begin_publish_run(text, text, boolean) IS
    'Locks a run that publishes to a queue, or to those that its rows name, as lock_publish_run() does; returns what it published before, else NULL. PQ004: it has published to another queue, or partitions one by one and is not by_partition, or the name is that of another pipeline''s run.';
