CREATE OR REPLACE FUNCTION messages.store_moment(sequence regclass, moment timestamptz) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- A sequence holds neither infinity nor what was before 1970.
    SELECT setval(sequence, (extract(epoch FROM least(greatest(moment, 'epoch'::timestamptz + interval '1 us'), 'epoch'::timestamptz + interval '290000 years'))
                             * 1000000)::bigint)
$$;
COMMENT ON FUNCTION messages.store_moment(regclass, timestamptz) IS
    'Puts a moment into a sequence: at once and for everybody, even if the transaction rolls back.';
