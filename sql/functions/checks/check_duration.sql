CREATE OR REPLACE FUNCTION messages.check_duration(
    name text, value interval, at_least interval, at_most interval, required boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From these times on, any number of months is as short and as long as it can be.
    shortest CONSTANT timestamp := '2001-02-01';
    longest  CONSTANT timestamp := '2003-07-01';
BEGIN
    -- PostgreSQL compares intervals as if every month had 30 days, so that -80000 months 2400000 days equal 0. What counts is
    -- the time that adding them yields. Each part is limited to a thousand years, so that the addition cannot overflow.
    IF required AND value IS NULL OR abs(extract(year FROM value)) > 1000 OR abs(extract(day FROM value)) > 365250 OR abs(extract(hour FROM value)) > 8766000
       OR shortest + value < shortest + at_least OR longest + value > longest + at_most THEN
        RAISE EXCEPTION '% is %', name, coalesce(value::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Give a duration from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_duration(text, interval, interval, interval, boolean) IS
    'Raises PQ004 for a duration that leads to a time out of range, in months of any length; NULL means not given, unless it is required.';
