CREATE OR REPLACE FUNCTION messages.roll_up_history(late_from timestamptz, queues_at_once integer DEFAULT 200) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    began    timestamptz := clock_timestamp();
    progress messages.history_progress;
    names    text[];
BEGIN
    SELECT * INTO progress FROM messages.history_progress;
    -- What was archived long ago and committed only now belongs to hours that are done: they are made again.
    IF late_from < progress.hours_until THEN
        progress.hours_until := greatest(date_trunc('hour', late_from, 'UTC'), progress.hours_until - interval '2 days');
        progress.hours_queue := '';
        progress.days_until := least(progress.days_until, date_trunc('day', progress.hours_until, 'UTC'));
        progress.days_queue := '';
    END IF;
    WHILE progress.hours_until + interval '61 minutes' <= began AND clock_timestamp() < began + interval '0.2 s' LOOP
        names := messages.roll_up_bucket('minute', 'hour', progress.hours_until, progress.hours_queue, roll_up_history.queues_at_once);
        progress.hours_queue := coalesce(names[roll_up_history.queues_at_once], '');
        IF progress.hours_queue = '' THEN
            progress.hours_until := progress.hours_until + interval '1 hour';
        END IF;
    END LOOP;
    WHILE progress.days_until + interval '1 day' <= progress.hours_until AND clock_timestamp() < began + interval '0.3 s' LOOP
        names := messages.roll_up_bucket('hour', 'day', progress.days_until, progress.days_queue, roll_up_history.queues_at_once);
        progress.days_queue := coalesce(names[roll_up_history.queues_at_once], '');
        IF progress.days_queue = '' THEN
            progress.days_until := (progress.days_until AT TIME ZONE 'UTC' + interval '1 day') AT TIME ZONE 'UTC';
        END IF;
    END LOOP;
    UPDATE messages.history_progress p
       SET hours_until = progress.hours_until, hours_queue = progress.hours_queue,
           days_until = progress.days_until, days_queue = progress.days_queue
     WHERE (p.hours_until, p.hours_queue, p.days_until, p.days_queue)
           IS DISTINCT FROM (progress.hours_until, progress.hours_queue, progress.days_until, progress.days_queue);
END $$;
COMMENT ON FUNCTION messages.roll_up_history(timestamptz, integer) IS
    'Adds the completed hours and days of the history up, some queues at a time and for at most 0.3 seconds; the next call continues. Hours from late_from on are made again.';
