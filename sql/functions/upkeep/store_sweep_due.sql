CREATE OR REPLACE FUNCTION messages.store_sweep_due(mark regclass, began timestamptz, ends timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    took interval    := clock_timestamp() - began;
    due  timestamptz := clock_timestamp() + least(200 * took, greatest(interval '0.9 s' - took, took / 2));
BEGIN
    -- Short sweeps take at most half a percent of the time, but each message is looked at within a second; where a walk takes longer than that,
    -- and where a lease ends sooner, two thirds of the time go into it.
    PERFORM messages.store_moment(mark, CASE WHEN took < interval '50 ms' THEN least(due, ends)
                                             ELSE greatest(least(due, ends), clock_timestamp() + took / 2) END);
END $$;
COMMENT ON FUNCTION messages.store_sweep_due(regclass, timestamptz, timestamptz) IS
    'Stores when the next sweep is due after one that began then; ends: when the first lease ends that it saw, NULL if it did not see all.';
