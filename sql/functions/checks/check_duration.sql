CREATE OR REPLACE FUNCTION messages.check_duration(name text, value interval, at_least interval, at_most interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < at_least OR value > at_most THEN
        RAISE EXCEPTION '% is %', name, value
            USING ERRCODE = 'PQ004', HINT = format('Give a duration from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_duration(text, interval, interval, interval) IS
    'Raises PQ004 for a duration out of range; NULL means not given.';
