CREATE OR REPLACE FUNCTION messages.create_priority_sequences(queue_name text, priority smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    marks record;
BEGIN
    SELECT * INTO marks FROM messages.create_marks();
    INSERT INTO messages.queue_priority (queue_name, priority, low_water, sweep_due, own_low_water, own_sweep_due)
    VALUES (create_priority_sequences.queue_name, create_priority_sequences.priority,
            marks.low_water, marks.sweep_due, marks.low_water, marks.sweep_due)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN                      -- another session was first
        EXECUTE format('DROP SEQUENCE %s, %s', marks.low_water, marks.sweep_due);
    END IF;
EXCEPTION WHEN deadlock_detected THEN
    PERFORM messages.raise_deadlock(format('priority %s, which is new in queue %L,', create_priority_sequences.priority, create_priority_sequences.queue_name));
END $$;
COMMENT ON FUNCTION messages.create_priority_sequences(text, smallint) IS
    'Creates the two sequences of a queue and priority that is seen for the first time. Waits for an open transaction that creates the same. PQ016: that one waits for this transaction.';
