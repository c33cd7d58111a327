CREATE OR REPLACE FUNCTION messages.stored_moment(sequence regclass) RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce('epoch'::timestamptz + pg_sequence_last_value(sequence) * interval '1 microsecond', '-infinity')
$$;
COMMENT ON FUNCTION messages.stored_moment(regclass) IS 'The moment that a sequence holds; -infinity before it was first set.';
