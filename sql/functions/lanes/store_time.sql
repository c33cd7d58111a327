CREATE OR REPLACE FUNCTION messages.store_time(mark regclass, at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM setval(mark, greatest(-1, (extract(epoch FROM at) * 1000000)::bigint));
END $$;
COMMENT ON FUNCTION messages.store_time(regclass, timestamptz) IS
    'Puts a time into a mark: at once and for everybody, even if the transaction rolls back.';
