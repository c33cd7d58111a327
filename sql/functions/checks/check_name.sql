CREATE OR REPLACE FUNCTION messages.check_name(name text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (length(value) BETWEEN 1 AND 250) IS NOT TRUE THEN
        RAISE EXCEPTION '% has % characters', name, coalesce(length(value), 0)
            USING ERRCODE = 'PQ004', HINT = 'Give a text of 1 to 250 characters.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_name(text, text) IS 'Raises PQ004 for what cannot be the name of a run or a stage, such as NULL.';
