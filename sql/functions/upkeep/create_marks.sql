CREATE OR REPLACE FUNCTION messages.create_marks(OUT low_water regclass, OUT sweep_due regclass)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = '' SET default_table_access_method = 'heap'
AS $$
DECLARE
    number integer := nextval('messages.priority_sequence_number');
    low    text := format('messages.low_water_%s', number);
    due    text := format('messages.sweep_due_%s', number);
BEGIN
    EXECUTE format('CREATE SEQUENCE %s AS bigint', low);
    EXECUTE format('CREATE SEQUENCE %s AS bigint', due);
    low_water := low;
    sweep_due := due;
END $$;
COMMENT ON FUNCTION messages.create_marks() IS 'Creates the two sequences in which the marks of a priority, or of a band of them, are kept.';
