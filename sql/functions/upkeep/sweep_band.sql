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
    lowest  timestamptz;
    ends    timestamptz;
    mark    timestamptz;
    passed  bigint      := pg_stat_get_xact_tuples_returned('messages.message_order_idx'::regclass) - 11 * pg_stat_get_xact_tuples_fetched('messages.message_order_idx'::regclass);
    below   timestamptz := moment - interval '5 s';
    leaving smallint[]  := '{}';
BEGIN
    SELECT q.shared_low_water AS low_water, q.shared_sweep_due AS sweep_due INTO shared
      FROM messages.queue q WHERE q.queue_name = sweep_band.queue_name COLLATE "default";
    IF NOT messages.begin_sweep(shared.sweep_due, sweep_band.seen_due) THEN
        RETURN NULL;
    END IF;
    mark := messages.stored_moment(shared.low_water);
    -- What ended before is swept now, or locked by somebody.
    FOR member IN
        SELECT p.priority, p.own_low_water, p.own_sweep_due, head.* FROM messages.queue_priority p
         CROSS JOIN LATERAL (
            SELECT count(*) AS number, count(*) FILTER (WHERE m.lock_expires_at IS NULL AND coalesce(m.expires_at > moment, true)) AS ready,
                   min(m.lock_expires_at) FILTER (WHERE m.lock_expires_at > sweep_band.moment) AS ends
              FROM (SELECT m.lock_expires_at, m.expires_at FROM messages.message m
                     WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment
                     ORDER BY m.visible_at LIMIT 1000) m) head
         WHERE p.queue_name = sweep_band.queue_name COLLATE "default" AND (p.follows OR p.band IS NOT NULL) AND head.number > 0
    LOOP
        swept := messages.sweep(sweep_band.queue_name, member.priority, '-infinity', 'infinity', sweep_band.max_attempts,
                                sweep_band.max_messages, sweep_band.moment);
        lowest := least(lowest, swept.lowest);
        ends := least(ends, member.ends);
        IF swept.freed + swept.archived >= sweep_band.max_messages THEN
            ends := began;
        END IF;
        -- A backlog would hold the mark of all others back.
        IF member.number >= 1000 OR member.ready + swept.freed >= 100 OR swept.lowest < began - interval '1 s' THEN
            leaving := leaving || member.priority;
            PERFORM messages.store_moment(member.own_low_water, coalesce(swept.lowest, 'epoch')), messages.store_moment(member.own_sweep_due, 'epoch');
        END IF;
    END LOOP;
    -- It stays far behind, because it moves also where nothing was found: a publisher that takes longer is found by a sweep.
    -- Whoever made something ready meanwhile has lowered it.
    PERFORM messages.store_moment(shared.low_water, least(lowest, below, nullif(messages.stored_moment(shared.low_water), mark)));
    -- Afterwards, because it lowers the mark.
    PERFORM messages.make_next_of_missed_groups_ready(sweep_band.queue_name);
    PERFORM messages.store_sweep_due(shared.sweep_due, began, ends, passed);
    IF cardinality(leaving) > 0 THEN
        PERFORM messages.arrange_bands(sweep_band.queue_name, leaving => leaving);
    END IF;
    RETURN lowest;
END $$;
COMMENT ON FUNCTION messages.sweep_band(text, integer, integer, timestamptz, timestamptz) IS
    'As sweep_priority, for all priorities of a queue that share their marks; those with a backlog get their own.';
