CREATE OR REPLACE FUNCTION messages.store_sweep_due(mark regclass, began timestamptz, ends timestamptz, passed bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    took   interval    := least(moment - began, interval '1 min');      -- or the clock was set forward meanwhile
    due    timestamptz := moment + least(200 * took, greatest(interval '0.9 s' - took, took / 2));
    long   boolean     := took > interval '0.45 s';
    more   boolean     := coalesce(ends <= began, false);
    dead   boolean     := coalesce(pg_stat_get_xact_tuples_returned('messages.message_order_idx'::regclass) - 11 * pg_stat_get_xact_tuples_fetched('messages.message_order_idx'::regclass) - passed > 10000, false);
BEGIN
    -- Short sweeps take at most half a percent of the time, but each message is looked at within a second; where a walk takes longer than that,
    -- and where a lease ends sooner, two thirds of the time go into it. A walk over dead versions, which a held snapshot keeps, may take
    -- a tenth of the time: it walks over them again each time. What counts is that most entries
    -- of the index led to no message: a walk also takes long when it waits for a processor. Where more has expired, none of them waits.
    IF took < interval '50 ms' OR more AND NOT dead THEN
        due := least(due, ends);
    ELSIF dead AND NOT more THEN
        due := moment + least(10 * took, interval '30 s');
        long := true;
    ELSE
        due := greatest(least(due, ends), moment + took / 2);
    END IF;
    -- The half millisecond tells all who read it that this walk is a long one. Without it, a sweep that is due more than a second
    -- from now was stored before the clock went back.
    PERFORM messages.store_moment(mark, date_trunc('milliseconds', due) + CASE WHEN long THEN interval '0.5 ms' ELSE '0' END);
END $$;
COMMENT ON FUNCTION messages.store_sweep_due(regclass, timestamptz, timestamptz, bigint) IS
    'Stores when the next sweep is due after one that began then; ends: when the first lease ends that it saw, NULL if it did not see all; not after it began, if it did not get to the end of what expired; passed: the entries of the index that this transaction had read when it began, without eleven for each that led to a message.';
