CREATE OR REPLACE FUNCTION messages.stored_time(mark regclass, at_most timestamptz DEFAULT 'infinity') RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored timestamptz := 'epoch'::timestamptz + coalesce(pg_sequence_last_value(mark), 0) * interval '1 us';
BEGIN
    RETURN CASE WHEN stored <= at_most THEN stored ELSE 'epoch' END;
END $$;
COMMENT ON FUNCTION messages.stored_time(regclass, timestamptz) IS
    'The time that a mark holds; 1970 before it was first set, or if it is later than at_most, because the clock went back.';
