CREATE OR REPLACE FUNCTION messages.store_sweep_due(mark regclass, began timestamptz, ends timestamptz, seen bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    took interval    := clock_timestamp() - began;
    due  timestamptz := clock_timestamp() + least(200 * took, greatest(interval '0.9 s' - took, took / 2));
BEGIN
    -- Short sweeps take at most half a percent of the time, but each message is looked at within a second; where a walk takes longer than that,
    -- and where a lease ends sooner, two thirds of the time go into it. A walk over dead versions, which a held snapshot keeps, sees
    -- few messages for its time: it may take a tenth of the time.
    PERFORM messages.store_moment(mark, CASE WHEN took < interval '50 ms' THEN least(due, ends)
                                             WHEN took > seen * interval '5 us' THEN clock_timestamp() + least(10 * took, interval '30 s')
                                             ELSE greatest(least(due, ends), clock_timestamp() + took / 2) END);
END $$;
COMMENT ON FUNCTION messages.store_sweep_due(regclass, timestamptz, timestamptz, bigint) IS
    'Stores when the next sweep is due after one that began then; ends: when the first lease ends that it saw, NULL if it did not see all; seen: how many messages it walked over, NULL if it did not count.';
