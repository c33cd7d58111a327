CREATE OR REPLACE FUNCTION messages.sweep_band(
    queue_name   text,
    max_attempts integer,
    max_messages integer,
    seen_due     timestamptz,
    moment       timestamptz DEFAULT clock_timestamp()
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    began   timestamptz := clock_timestamp();
    shared  record;
    member  record;
    swept   record;
    seen    record;
    lowest  timestamptz;
    ends    timestamptz := 'infinity';
    below   timestamptz := moment - interval '5 s';
    leaving smallint[]  := '{}';
BEGIN
    SELECT q.shared_low_water AS low_water, q.shared_sweep_due AS sweep_due INTO shared
      FROM messages.queue q WHERE q.queue_name = sweep_band.queue_name COLLATE "default";
    IF NOT messages.begin_sweep(shared.sweep_due, sweep_band.seen_due) THEN
        RETURN NULL;
    END IF;
    FOR member IN
        SELECT p.priority, p.own_low_water, p.own_sweep_due FROM messages.queue_priority p
         WHERE p.queue_name = sweep_band.queue_name COLLATE "default" AND (p.follows OR p.band IS NOT NULL)
           AND EXISTS (SELECT FROM messages.message m
                        WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment)
    LOOP
        swept := messages.sweep(sweep_band.queue_name, member.priority, '-infinity', 'infinity', sweep_band.max_attempts,
                                sweep_band.max_messages, sweep_band.moment);
        lowest := least(lowest, swept.lowest);
        SELECT count(*) AS number, count(*) FILTER (WHERE m.lock_expires_at IS NULL) AS ready, min(m.lock_expires_at) AS ends INTO seen
          FROM (SELECT m.lock_expires_at FROM messages.message m
                 WHERE m.queue_name = sweep_band.queue_name COLLATE "default" AND m.priority = member.priority AND m.visible_at <= moment
                 ORDER BY m.visible_at LIMIT 1000) m;
        ends := CASE WHEN seen.number < 1000 THEN least(ends, seen.ends) END;
        -- A backlog would hold the mark of all others back.
        IF seen.number >= 1000 OR seen.ready >= 100 OR swept.lowest < began - interval '1 s' THEN
            leaving := leaving || member.priority;
            PERFORM messages.store_moment(member.own_low_water, coalesce(swept.lowest, 'epoch')), messages.store_moment(member.own_sweep_due, 'epoch');
        END IF;
    END LOOP;
    -- It stays far behind, because it moves also where nothing was found: a publisher that takes longer is found by a sweep.
    PERFORM messages.store_moment(shared.low_water, least(lowest, below));
    -- Afterwards, because it lowers the mark.
    PERFORM messages.make_next_of_missed_groups_ready(sweep_band.queue_name);
    PERFORM messages.store_sweep_due(shared.sweep_due, began, ends);
    IF cardinality(leaving) > 0 THEN
        PERFORM messages.arrange_bands(sweep_band.queue_name, leaving => leaving);
    END IF;
    RETURN lowest;
END $$;
COMMENT ON FUNCTION messages.sweep_band(text, integer, integer, timestamptz, timestamptz) IS
    'As sweep_priority, for all priorities of a queue that share their marks; those with a backlog get their own.';
