CREATE OR REPLACE FUNCTION messages.store_moment(sequence regclass, moment timestamptz) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT setval(sequence, greatest((extract(epoch FROM moment) * 1000000)::bigint, 1)) $$;
COMMENT ON FUNCTION messages.store_moment(regclass, timestamptz) IS
    'Puts a moment into a sequence: at once and for everybody, even if the transaction rolls back.';
