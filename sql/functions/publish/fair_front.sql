CREATE OR REPLACE FUNCTION messages.fair_front(queue_name text, priority integer) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    begins CONSTANT timestamptz := coalesce((SELECT messages.stored_time(l.mark, moment) FROM messages.lane l
                                              WHERE l.queue_name = fair_front.queue_name COLLATE "default" AND l.priority = fair_front.priority), 'epoch');
BEGIN
    RETURN (SELECT m.visible_at FROM messages.message_rows m
             WHERE m.queue_name = fair_front.queue_name COLLATE "default" AND m.priority = fair_front.priority
               AND m.visible_at >= begins AND m.visible_at <= moment AND m.lock_expires_at IS NULL
             ORDER BY m.visible_at LIMIT 1);
END $$;
COMMENT ON FUNCTION messages.fair_front(text, integer) IS
    'The place of the first ready message of a lane, from which turns are counted; NULL if none is ready. The mark of the lane may lie before it, by as many turns as the last lease had messages.';
