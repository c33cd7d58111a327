CREATE OR REPLACE FUNCTION messages.sweep_queues(
    INOUT queue_name text        DEFAULT NULL,
    INOUT priority   integer     DEFAULT NULL,
    INOUT above      timestamptz DEFAULT NULL,
    INOUT below      timestamptz DEFAULT NULL,
    INOUT lowest     timestamptz DEFAULT NULL,
    OUT freed        bigint,
    OUT archived     bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    -- Consumers pass over what this transaction freed: these cost a lease a few milliseconds.
    room  integer := 5000;
    level record;
    swept record;
BEGIN
    freed := 0;
    archived := 0;
    IF pg_try_advisory_xact_lock(hashtextextended('messages.upkeep', 0)) THEN
        FOR level IN
            SELECT u.* FROM messages.occupied_priority u
             WHERE u.is_unswept AND (u.queue_name, u.priority) >= (coalesce(sweep_queues.queue_name COLLATE "default", ''), coalesce(sweep_queues.priority, -32768))
             ORDER BY u.queue_name, u.priority
        LOOP
            IF (level.queue_name, level.priority::integer) IS DISTINCT FROM (sweep_queues.queue_name, sweep_queues.priority)
               OR sweep_queues.above IS NULL OR sweep_queues.below IS NULL THEN
                queue_name := level.queue_name;
                priority := level.priority;
                above := level.first_at;
                -- No infinity, which Python cannot hold; nor, below, what lies before 1970: upkeep finds the rest.
                below := least(messages.last_leased(level.queue_name, level.priority), clock_timestamp());
                lowest := NULL;
            -- What the call before freed is committed now. Consumers that passed over it may have moved the mark beyond it.
            ELSIF lowest < messages.stored_moment(level.low_water) THEN
                PERFORM messages.store_moment(level.low_water, lowest);
            END IF;
            swept := messages.sweep(level.queue_name, level.priority, above, below, level.max_attempts, room);
            lowest := swept.lowest;
            IF lowest < messages.stored_moment(level.low_water) THEN
                PERFORM messages.store_moment(level.low_water, lowest);
            END IF;
            freed := freed + swept.freed;
            archived := archived + swept.archived;
            room := room - swept.freed - swept.archived;
            IF room <= 0 THEN
                above := greatest(swept.highest, 'epoch');
                lowest := greatest(lowest, 'epoch');
                RETURN;
            END IF;
        END LOOP;
    END IF;
    queue_name := NULL;
    priority := NULL;
    above := NULL;
    below := NULL;
    lowest := NULL;
END $$;
COMMENT ON FUNCTION messages.sweep_queues(text, integer, timestamptz, timestamptz, timestamptz) IS
    'The first part of an upkeep, in transactions that stay short: ends 5,000 expired leases, or archives what is out of attempts or past its expires_at, and returns where to continue, which is given to the next call in a transaction of its own; queue_name is NULL after the last. What it leaves, because another session had it locked, upkeep() sweeps.';
