CREATE OR REPLACE FUNCTION messages.stored_moment(sequence regclass, at_most timestamptz DEFAULT 'infinity') RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN stored.moment <= at_most THEN stored.moment ELSE '-infinity' END
      FROM (SELECT 'epoch'::timestamptz + pg_sequence_last_value(sequence) * interval '1 microsecond' AS moment) stored
$$;
COMMENT ON FUNCTION messages.stored_moment(regclass, timestamptz) IS
    'The moment that a sequence holds; -infinity before it was first set, or if it is later than at_most: the clock went back since.';
