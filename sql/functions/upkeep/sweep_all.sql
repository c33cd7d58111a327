CREATE OR REPLACE FUNCTION messages.sweep_all(queue_name text, priority smallint, max_attempts integer, first_at timestamptz DEFAULT '-infinity')
RETURNS TABLE (lowest timestamptz, freed bigint, archived bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    above timestamptz;
    below timestamptz;
    mark  timestamptz;
    swept record;
BEGIN
    freed := 0;
    archived := 0;
    below := messages.last_leased(sweep_all.queue_name, sweep_all.priority);
    -- The end comes first, in pieces. What this transaction frees stays locked until its commit, and consumers, who begin at the
    -- head, would walk over all of it to free some themselves.
    LOOP
        SELECT min(m.visible_at) INTO above
          FROM (SELECT m.visible_at FROM messages.message m
                 WHERE m.queue_name = sweep_all.queue_name COLLATE "default" AND m.priority = sweep_all.priority
                   AND m.visible_at >= sweep_all.first_at AND m.visible_at < below AND m.visible_at <= moment
                 ORDER BY m.visible_at DESC LIMIT 10000) m;
        EXIT WHEN above IS NULL;
        mark := above;
        LOOP
            swept := messages.sweep(sweep_all.queue_name, sweep_all.priority, mark, below, max_attempts, 1000);
            lowest := least(lowest, swept.lowest);
            freed := freed + swept.freed;
            archived := archived + swept.archived;
            EXIT WHEN swept.freed + swept.archived < 1000;
            mark := swept.highest;                 -- not again over what was just freed
        END LOOP;
        below := above;
    END LOOP;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION messages.sweep_all(text, smallint, integer, timestamptz) IS
    'Sweeps a queue and priority until nothing is left to sweep, in batches and in one walk from its end to its head; first_at: where that is, so that it is not looked for behind what a held snapshot keeps.';
