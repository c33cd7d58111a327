CREATE OR REPLACE FUNCTION messages.check_queue_name(queue_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF queue_name IS NULL OR queue_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'queue name % is not valid', coalesce(quote_literal(left(queue_name, 100)), 'NULL')
            USING ERRCODE = 'PQ003', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_queue_name(text) IS 'Raises PQ003 for a name that no queue can have.';
