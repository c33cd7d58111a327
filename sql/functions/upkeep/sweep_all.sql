CREATE OR REPLACE FUNCTION messages.sweep_all(queue_name text, priority smallint, max_attempts integer)
RETURNS TABLE (lowest timestamptz, freed bigint, archived bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    below timestamptz;
    swept record;
BEGIN
    freed := 0;
    archived := 0;
    -- Leases lie below the low-water mark, except those that plain SQL took somewhere beyond it: look a little further.
    SELECT max(ahead.visible_at) + interval '1 microsecond' INTO below FROM (
        SELECT m.visible_at
          FROM messages.message m
         WHERE m.queue_name = sweep_all.queue_name AND m.priority = sweep_all.priority
           AND m.visible_at >= (SELECT messages.stored_moment(p.low_water) FROM messages.queue_priority p
                                 WHERE p.queue_name = sweep_all.queue_name AND p.priority = sweep_all.priority)
         ORDER BY m.visible_at LIMIT 10000) ahead;
    LOOP
        swept := messages.sweep(sweep_all.queue_name, sweep_all.priority, coalesce(below, 'infinity'), max_attempts, 1000);
        lowest := swept.lowest;
        freed := freed + swept.freed;
        archived := archived + swept.archived;
        EXIT WHEN swept.freed + swept.archived < 1000;
    END LOOP;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION messages.sweep_all(text, smallint, integer) IS
    'Sweeps a queue and priority in batches until nothing is left to sweep.';
