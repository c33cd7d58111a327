CREATE OR REPLACE FUNCTION messages.publish_staged(
    stage_id     text,
    run_id       text,
    winners      jsonb,
    queue_name   text     DEFAULT NULL,
    dedup_window interval DEFAULT NULL,
    batch        bigint   DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done jsonb;
BEGIN
    PERFORM messages.check_duration('dedup_window', publish_staged.dedup_window, '1 second', '366 days');
    PERFORM messages.check_length('run_id', publish_staged.run_id, 1, 250, required => true), messages.check_winners(publish_staged.winners);
    done := CASE WHEN publish_staged.batch IS NULL THEN messages.begin_publish_run(publish_staged.run_id, publish_staged.queue_name)
                 ELSE messages.lock_publish_run(publish_staged.run_id, publish_staged.batch) END || '{"repeated": true}';
    IF done IS NOT NULL THEN
        -- The stage of a stream may hold the next batch already: this call may come from a driver that has been replaced.
        PERFORM messages.drop_or_empty_stage(s.number) FROM messages.publish_stage s
         WHERE publish_staged.batch IS NULL AND s.made_by = session_user AND s.stage_id = publish_staged.stage_id;
        RETURN done;
    END IF;
    done := messages.insert_staged(publish_staged.stage_id, publish_staged.winners, publish_staged.queue_name, publish_staged.dedup_window)
            || jsonb_strip_nulls(jsonb_build_object('batch', publish_staged.batch));
    -- A stream has one row, that of its last batch.
    UPDATE messages.pipeline_run r
       SET finished_at = clock_timestamp(), summary = done,
           started_at = CASE WHEN publish_staged.batch IS NULL THEN r.started_at ELSE clock_timestamp() END
     WHERE r.started_by = session_user AND r.run_id = publish_staged.run_id;
    PERFORM messages.drop_or_empty_stage(s.number, publish_staged.batch IS NOT NULL) FROM messages.publish_stage s
     WHERE s.made_by = session_user AND s.stage_id = publish_staged.stage_id;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.publish_staged(text, text, jsonb, text, interval, bigint) IS
    'Publishes the rows of the attempts in winners ([{partition, attempt, rows}, ...]) in their order, records the run, and drops the stage (empties it for a stream), all or none. Called again for the same run or batch, it publishes nothing and returns repeated. PQ004: the run has published to another queue; PQ012: rows are missing; other errors as in publish.';
