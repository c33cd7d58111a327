CREATE OR REPLACE FUNCTION messages.ring(queue_name text, max_rings integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    rung   integer := 0;
    level  record;
BEGIN
    FOR level IN
        SELECT p.priority, messages.stored_time(p.mark, moment) AS lowest
          FROM messages.lane p WHERE p.queue_name = ring.queue_name COLLATE "default" AND p.used ORDER BY p.priority DESC
    LOOP
        rung := rung + (
            SELECT count(pg_notify('new_message', waiting.id::text)) FROM (
                SELECT m.id FROM messages.message_rows m
                 WHERE m.queue_name = ring.queue_name COLLATE "default" AND m.priority = level.priority
                   AND m.visible_at >= level.lowest AND m.visible_at <= moment AND m.lock_expires_at IS NULL
                 ORDER BY m.visible_at LIMIT greatest(max_rings - rung, 0)) waiting);
    END LOOP;
    RETURN rung;
END $$;
COMMENT ON FUNCTION messages.ring(text, integer) IS
    'Sends new_message again for the oldest ready messages of a queue and returns for how many.';
