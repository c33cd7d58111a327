CREATE OR REPLACE FUNCTION messages.check_key(name text, value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(value) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION '% has % characters', name, length(value)
            USING ERRCODE = 'PQ004', HINT = 'Give a text of 1 to 255 characters.';
    END IF;
    RETURN value;
END $$;
COMMENT ON FUNCTION messages.check_key(text, text) IS
    'Returns a group_key or dedup_key, or raises PQ004 if it cannot be one; NULL means not given.';
