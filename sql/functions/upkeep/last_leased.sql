CREATE OR REPLACE FUNCTION messages.last_leased(queue_name text, priority smallint) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    mark  timestamptz;
    ahead record;
BEGIN
    SELECT messages.stored_moment(p.low_water, clock_timestamp()) INTO mark FROM messages.queue_priority p
     WHERE p.queue_name = last_leased.queue_name COLLATE "default" AND p.priority = last_leased.priority;
    -- Leases lie below the low-water mark, except where it moved down since they were taken, and where plain SQL took
    -- some beyond it: continue for as long as the messages ahead hold any.
    LOOP
        SELECT max(m.visible_at) AS until, count(*) AS seen, count(m.lock_expires_at) AS leased INTO ahead
          FROM (SELECT m.visible_at, m.lock_expires_at FROM messages.message m
                 WHERE m.queue_name = last_leased.queue_name COLLATE "default" AND m.priority = last_leased.priority AND m.visible_at >= mark
                 ORDER BY m.visible_at LIMIT 10000) m;
        IF ahead.seen < 10000 THEN
            RETURN 'infinity';
        END IF;
        mark := ahead.until + interval '1 microsecond';
        IF ahead.leased = 0 THEN
            RETURN mark;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.last_leased(text, smallint) IS
    'The moment below which all leases of a priority lie: what comes later has never been leased, except by plain SQL behind 10,000 that were not.';
