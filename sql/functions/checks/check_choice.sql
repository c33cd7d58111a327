CREATE OR REPLACE FUNCTION messages.check_choice(name text, value text, choices text[], required boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR value <> ALL (choices) THEN
        RAISE EXCEPTION '% is %', name, coalesce(quote_literal(left(value, 100)), 'NULL') USING ERRCODE = 'PQ004',
            HINT = format('Give %s or %s.', array_to_string(trim_array(choices, 1), ', '), choices[cardinality(choices)]);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_choice(text, text, text[], boolean) IS
    'Raises PQ004 for a text that is none of these; NULL means not given, unless it is required.';
