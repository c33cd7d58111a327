CREATE OR REPLACE FUNCTION messages.sweep_priority(
    queue_name   text,
    priority     smallint,
    below        timestamptz,
    max_attempts integer,
    max_messages integer,
    seen_due     timestamptz,
    moment       timestamptz DEFAULT NULL,
    in_vain      boolean     DEFAULT false
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    began  timestamptz := clock_timestamp();
    lowest timestamptz;
    level  messages.queue_priority;
    ends   timestamptz;
    more   boolean;
    passed bigint      := pg_stat_get_xact_tuples_returned('messages.message_order_idx'::regclass) - 11 * pg_stat_get_xact_tuples_fetched('messages.message_order_idx'::regclass);
BEGIN
    SELECT * INTO level FROM messages.queue_priority p WHERE p.queue_name = sweep_priority.queue_name COLLATE "default" AND p.priority = sweep_priority.priority;
    IF NOT messages.begin_sweep(level.sweep_due, sweep_priority.seen_due) THEN
        RETURN NULL;
    END IF;
    -- The lease passed over many that are leased. The next need not: what is ready in front of the new mark this sweep sees, and
    -- whoever makes more ready there lowers the mark again. Five seconds, for publishers that have not committed.
    IF sweep_priority.in_vain AND messages.stored_moment(level.low_water, began) < began - interval '5 s' THEN
        PERFORM messages.store_moment(level.low_water, began - interval '5 s');
    END IF;
    SELECT s.lowest, s.freed + s.archived >= sweep_priority.max_messages, s.ends INTO lowest, more, ends
      FROM messages.sweep(sweep_priority.queue_name, sweep_priority.priority, '-infinity',
                          sweep_priority.below, sweep_priority.max_attempts, sweep_priority.max_messages, sweep_priority.moment) s;
    IF EXISTS (SELECT FROM messages.group_without_head w WHERE w.queue_name = sweep_priority.queue_name COLLATE "default") THEN
        PERFORM messages.make_next_of_missed_groups_ready(sweep_priority.queue_name);
    END IF;
    IF lowest IS NOT NULL AND lowest < messages.stored_moment(level.low_water) THEN
        PERFORM messages.store_moment(level.low_water, lowest);
    END IF;
    -- At once, where it did not get to the end of what expired. The next walk over the same, only where it costs little.
    IF more THEN
        ends := began;
    ELSIF (ends IS NULL OR sweep_priority.below < 'infinity') AND clock_timestamp() < began + interval '50 ms' THEN
        -- What ended before and is still there, somebody has locked: not each lease has to look at it until they commit.
        SELECT CASE WHEN count(*) >= 1000 THEN ends
                    ELSE min(m.lock_expires_at) FILTER (WHERE m.visible_at >= sweep_priority.below
                                                           OR m.lock_expires_at > coalesce(sweep_priority.moment, began)) END INTO ends
          FROM (SELECT m.visible_at, m.lock_expires_at FROM messages.message m
                 WHERE m.queue_name = sweep_priority.queue_name COLLATE "default" AND m.priority = sweep_priority.priority AND m.visible_at <= began
                 ORDER BY m.visible_at LIMIT 1000) m;
    END IF;
    PERFORM messages.store_sweep_due(level.sweep_due, began, ends, passed);
    RETURN lowest;
END $$;
COMMENT ON FUNCTION messages.sweep_priority(text, smallint, timestamptz, integer, integer, timestamptz, timestamptz, boolean) IS
    'A sweep that a lease pays for: moves both marks and returns where the ready messages begin, NULL if there are none, or if another session began one since this lease saw when it was due. in_vain: the lease walked for long and found nothing.';
