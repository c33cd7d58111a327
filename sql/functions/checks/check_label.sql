CREATE OR REPLACE FUNCTION messages.check_label(name text, value text, most integer DEFAULT 255) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(value) > most THEN
        RAISE EXCEPTION '% has % characters: the most is %', name, length(value), most USING ERRCODE = 'PQ004', HINT = 'Give a shorter one.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_label(text, text, integer) IS 'Raises PQ004 for a name that is too long; NULL means none.';
