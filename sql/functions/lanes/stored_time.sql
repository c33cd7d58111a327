CREATE OR REPLACE FUNCTION messages.stored_time(mark regclass, at_most timestamptz DEFAULT 'infinity') RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN stored.at <= at_most THEN stored.at ELSE 'epoch' END
      FROM (SELECT 'epoch'::timestamptz + coalesce(pg_sequence_last_value(mark), 0) * interval '1 us' AS at) stored
$$;
COMMENT ON FUNCTION messages.stored_time(regclass, timestamptz) IS
    'The time that a mark holds; 1970 before it was first set, or if it is later than at_most, because the clock went back.';
