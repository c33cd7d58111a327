CREATE OR REPLACE FUNCTION messages.check_remedied_by(remedied_by text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(remedied_by) > 600 THEN      -- what fits into an index, of characters of any length
        RAISE EXCEPTION 'remedied_by has % characters', length(remedied_by)
            USING ERRCODE = 'PQ004', HINT = 'Give at most 600 characters.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_remedied_by(text) IS 'Raises PQ004 for a name that is too long for the index on remedies; NULL means not given.';
