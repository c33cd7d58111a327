CREATE OR REPLACE FUNCTION messages.sweep_band(
    queue_name   text,
    priority     smallint,
    below        timestamptz,
    max_attempts integer,
    max_messages integer
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    lowest timestamptz;
    band   messages.band;
BEGIN
    SELECT * INTO band FROM messages.band b WHERE b.queue_name = sweep_band.queue_name AND b.priority = sweep_band.priority;
    SELECT s.lowest INTO lowest
      FROM messages.sweep(sweep_band.queue_name, sweep_band.priority, sweep_band.below, sweep_band.max_attempts, sweep_band.max_messages) s;
    PERFORM messages.make_next_of_missed_groups_ready(sweep_band.queue_name);
    IF lowest < messages.stored_moment(band.low_water) THEN
        PERFORM messages.store_moment(band.low_water, lowest);
    END IF;
    PERFORM messages.store_moment(band.sweep_due, clock_timestamp() + 50 * (clock_timestamp() - moment));
    RETURN lowest;
END $$;
COMMENT ON FUNCTION messages.sweep_band(text, smallint, timestamptz, integer, integer) IS
    'Internal. A sweep that a lease pays for: moves the marks of the band and returns from where there is something ready, if there is.';
