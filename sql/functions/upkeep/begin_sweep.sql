CREATE OR REPLACE FUNCTION messages.begin_sweep(sweep_due regclass, seen timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    due bigint := pg_sequence_last_value(begin_sweep.sweep_due);
BEGIN
    -- Two hundred consumers see at the same time that a sweep is due. One is enough: it walks over all that is leased.
    -- As stored_moment and store_moment, whose calls would be a tenth of what a short sweep takes.
    IF 'epoch'::timestamptz + due * interval '1 us' IS DISTINCT FROM begin_sweep.seen THEN
        RETURN false;
    END IF;
    -- Nor do they begin while a long walk lasts.
    PERFORM setval(begin_sweep.sweep_due, (extract(epoch FROM clock_timestamp()) * 1000)::bigint * 1000
                                          + CASE WHEN due % 1000 = 500 THEN 10000500 ELSE 900000 END);
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.begin_sweep(regclass, timestamptz) IS
    'Whether this session may sweep, because the mark is still what it saw; the others do without a sweep for a second, or for ten where the last walk was a long one, even if this one fails.';
