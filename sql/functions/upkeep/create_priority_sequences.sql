CREATE OR REPLACE FUNCTION messages.create_priority_sequences(queue_name text, priority smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = '' SET default_table_access_method = 'heap'
AS $$
#variable_conflict use_column
DECLARE
    number   integer := nextval('messages.priority_sequence_number');
    low      text := format('messages.low_water_%s', number);
    due      text := format('messages.sweep_due_%s', number);
BEGIN
    EXECUTE format('CREATE SEQUENCE %s AS bigint', low);
    EXECUTE format('CREATE SEQUENCE %s AS bigint', due);
    INSERT INTO messages.queue_priority (queue_name, priority, low_water, sweep_due)
    VALUES (create_priority_sequences.queue_name, create_priority_sequences.priority, low::regclass, due::regclass)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN                      -- another session was first
        EXECUTE format('DROP SEQUENCE %s, %s', low, due);
    END IF;
END $$;
COMMENT ON FUNCTION messages.create_priority_sequences(text, smallint) IS
    'Creates the two sequences of a queue and priority that is seen for the first time.';
