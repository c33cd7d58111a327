CREATE OR REPLACE FUNCTION messages.check_times(past timestamptz, coming timestamptz) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- One time with which nobody can reckon would stop whoever comes across it.
    IF past NOT BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00' OR coming < '1970-01-01 00:00+00'
       OR coming > '9999-12-31 00:00+00' AND coming < 'infinity' THEN
        RAISE EXCEPTION 'a time is % and another %', coalesce(past::text, 'NULL'), coalesce(coming::text, 'NULL')
            USING ERRCODE = 'check_violation', HINT = 'Give times before the year 10000, and a visible_at since 1970.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_times(timestamptz, timestamptz) IS 'Raises 23514 for times that plain SQL may not write.';
