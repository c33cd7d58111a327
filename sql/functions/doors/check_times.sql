CREATE OR REPLACE FUNCTION messages.check_times(past timestamptz[], coming timestamptz[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A time outside of this range breaks every later calculation that reads it.
    IF '0001-01-01 00:00+00' > ANY (past) OR '1970-01-01 00:00+00' > ANY (coming) OR '9999-12-31 00:00+00' < ANY (past || coming) THEN
        RAISE EXCEPTION 'one of these times is out of range: %', array_to_string(past || coming, ', ')
            USING ERRCODE = 'check_violation', HINT = 'Give times before the year 10000, and those that are to come since 1970.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_times(timestamptz[], timestamptz[]) IS 'Raises 23514 for times that plain SQL may not write.';
