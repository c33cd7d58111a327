CREATE OR REPLACE FUNCTION messages.store_sweep_due(mark regclass, began timestamptz, ends timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    took interval    := clock_timestamp() - began;
    due  timestamptz := clock_timestamp() + least(50 * took, interval '0.9 s');
BEGIN
    -- Sweeps take at most 2 % of the time, but the next is due within a second. Where one costs next to nothing, it is due
    -- when the first of the leases ends.
    PERFORM messages.store_moment(mark, CASE WHEN took < interval '50 ms' THEN least(due, ends) ELSE due END);
END $$;
COMMENT ON FUNCTION messages.store_sweep_due(regclass, timestamptz, timestamptz) IS
    'Stores when the next sweep is due after one that began then; ends: when the first lease ends that it saw, NULL if it did not see all.';
