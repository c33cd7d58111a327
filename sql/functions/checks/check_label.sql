CREATE OR REPLACE FUNCTION messages.check_label(name text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(value) > 255 THEN
        RAISE EXCEPTION '% has % characters: the most is 255', name, length(value) USING ERRCODE = 'PQ004', HINT = 'Give a shorter one.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_label(text, text) IS 'Raises PQ004 for a name of more than 255 characters; NULL means none.';
