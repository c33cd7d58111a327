CREATE OR REPLACE FUNCTION messages.publish_partition(
    stage_id     text,
    run_id       text,
    winner       jsonb,
    queue_name   text     DEFAULT NULL,
    dedup_window interval DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    run    messages.pipeline_run;
    entry  messages.published_partition;
    before bigint;
    done   jsonb;
BEGIN
    PERFORM messages.check_duration('dedup_window', publish_partition.dedup_window, '1 second', '366 days');
    PERFORM messages.check_winners(jsonb_build_array(publish_partition.winner));
    -- Whoever finishes the run waits for this transaction, and no attempt that comes after it publishes anything.
    SELECT * INTO run FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = publish_partition.run_id AND r.pipeline = 'publish' FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM messages.check_run_begun(publish_partition.run_id, 'publish');
    END IF;
    entry.partition := publish_partition.winner -> 'partition';
    entry.rows := publish_partition.winner -> 'rows';
    IF run.finished_at IS NULL THEN
        INSERT INTO messages.published_partition (run_id, partition, rows) VALUES (publish_partition.run_id, entry.partition, entry.rows)
        ON CONFLICT (started_by, run_id, partition) DO NOTHING;    -- waits until another attempt of the partition has ended
    END IF;
    IF run.finished_at IS NULL AND FOUND THEN
        done := messages.insert_staged(publish_partition.stage_id, jsonb_build_array(publish_partition.winner),
                                       publish_partition.queue_name, publish_partition.dedup_window);
        UPDATE messages.published_partition p SET published = (done -> 'published')::bigint
         WHERE p.started_by = session_user AND p.run_id = publish_partition.run_id AND p.partition = entry.partition;
    ELSE
        SELECT p.rows INTO before FROM messages.published_partition p
         WHERE p.started_by = session_user AND p.run_id = publish_partition.run_id AND p.partition = entry.partition;
        IF before <> entry.rows THEN
            PERFORM messages.raise_other_partitions(publish_partition.run_id,
                format('partition %s had %s rows when it was published, and has %s now', entry.partition, before, entry.rows));
        END IF;
        done := jsonb_build_object('rows', entry.rows, 'published', 0, 'duplicates', 0, 'repeated', true);
    END IF;
    PERFORM messages.drop_or_empty_stage(s.number, true) FROM messages.publish_stage s
     WHERE s.made_by = session_user AND s.stage_id = publish_partition.stage_id;
    RETURN done;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', publish_partition.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.publish_partition(text, text, jsonb, text, interval) IS
    'Publishes one partition of a run, {partition, attempt, rows}, from its stage, records it with the run, and empties the stage, all or none. A partition that was published before, or of a run that has finished, publishes nothing and returns repeated. PQ004: the run was not begun, or the partition had another number of rows; PQ012: rows are missing; PQ016: a transaction that publishes it stayed open for more than three seconds, or waits for this one; other errors as in publish.';
