CREATE OR REPLACE FUNCTION messages.create_mark() RETURNS regclass
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = ''
AS $$
DECLARE
    name text := format('messages.mark_%s', nextval('messages.mark_number'));
BEGIN
    -- No further than a timestamp can hold.
    EXECUTE format('CREATE SEQUENCE %s MINVALUE -1 MAXVALUE 100000000000000000', name);
    PERFORM messages.keep_private(name::regclass);
    RETURN name::regclass;
END $$;
COMMENT ON FUNCTION messages.create_mark() IS 'Creates a sequence that holds a time.';
