CREATE OR REPLACE FUNCTION messages.check_number(name text, value bigint, at_least bigint, at_most bigint, required boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR value NOT BETWEEN at_least AND at_most THEN
        RAISE EXCEPTION '% is %', name, coalesce(value::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Give a whole number from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_number(text, bigint, bigint, bigint, boolean) IS
    'Raises PQ004 for a number out of range; NULL means not given, unless it is required.';
