CREATE OR REPLACE FUNCTION messages.check_reference(reference text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The longest text that fits into an index entry even if it cannot be compressed.
    IF octet_length(reference) > 2600 THEN
        RAISE EXCEPTION 'reference has % bytes', octet_length(reference)
            USING ERRCODE = 'PQ004', HINT = 'Give a text of at most 2600 bytes.';
    END IF;
    RETURN reference;
END $$;
COMMENT ON FUNCTION messages.check_reference(text) IS 'Returns a reference, or raises PQ004 if it is too long; NULL means not given.';
