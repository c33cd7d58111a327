CREATE OR REPLACE FUNCTION messages.begin_publish_run(run_id text, queue_name text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done jsonb := messages.lock_publish_run(begin_publish_run.run_id);
    was  text;
BEGIN
    IF begin_publish_run.run_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- A run that has published nothing may still publish to another queue.
    UPDATE messages.pipeline_run r SET queue_name = begin_publish_run.queue_name
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id AND r.finished_at IS NULL;
    SELECT r.queue_name INTO was FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id;
    IF was IS DISTINCT FROM begin_publish_run.queue_name THEN
        RAISE EXCEPTION 'run % has published to %, not to %', quote_literal(begin_publish_run.run_id),
                        coalesce('queue ' || quote_literal(was), 'the queues that its rows named'),
                        coalesce('queue ' || quote_literal(begin_publish_run.queue_name), 'the queues that its rows name')
            USING ERRCODE = 'PQ004', HINT = 'Give each run a name of its own.';
    END IF;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.begin_publish_run(text, text) IS
    'Locks a run that publishes to a queue, or to those that its rows name, as lock_publish_run() does; returns what it published before, else NULL. PQ004: it has published to another queue, or the name is that of another pipeline''s run.';
