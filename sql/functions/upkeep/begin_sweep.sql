CREATE OR REPLACE FUNCTION messages.begin_sweep(sweep_due regclass, seen timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Two hundred consumers see at the same time that a sweep is due. One is enough: it walks over all that is leased.
    IF messages.stored_moment(begin_sweep.sweep_due) IS DISTINCT FROM coalesce(begin_sweep.seen, '-infinity') THEN
        RETURN false;
    END IF;
    PERFORM messages.store_moment(begin_sweep.sweep_due, clock_timestamp() + interval '0.9 s');
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.begin_sweep(regclass, timestamptz) IS
    'Whether this session may sweep, because the mark is still what it saw; the others do without a sweep for a second, even if this one fails.';
