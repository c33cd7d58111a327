CREATE OR REPLACE FUNCTION messages.correct_marks(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    lane  record;
BEGIN
    FOR lane IN
        SELECT l.priority, l.mark, messages.stored_time(l.mark) AS at, first.at AS first
          FROM messages.lane l
          LEFT JOIN LATERAL (
            SELECT m.visible_at - interval '1 us' AS at FROM messages.message_rows m
             WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at <= began
               AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > began)
             ORDER BY m.visible_at LIMIT 1) first ON true
         WHERE l.queue_name = correct_marks.queue_name COLLATE "default" AND l.mark IS NOT NULL
    LOOP
        -- Some were published long before their commit, or leased by a transaction that was rolled back. Where nothing is ready,
        -- nobody has to walk over what is leased.
        IF lane.first <> lane.at OR lane.first IS NULL AND (lane.at < began - interval '2 s' OR lane.at > began) THEN
            PERFORM messages.store_time(lane.mark, coalesce(lane.first, began - interval '1 s'));
        END IF;
    END LOOP;
    -- While the first publisher opened the lane, or was rolled back, others may have published there.
    FOR lane IN
        SELECT l.priority
          FROM messages.lane l
          -- Not EXISTS, which the planner may answer by a walk over the whole queue.
         CROSS JOIN LATERAL (SELECT FROM messages.message_rows m WHERE m.queue_name = l.queue_name AND m.priority = l.priority LIMIT 1) used
         WHERE l.queue_name = correct_marks.queue_name COLLATE "default" AND NOT l.used
    LOOP
        PERFORM messages.open_lane(correct_marks.queue_name, lane.priority);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.correct_marks(text) IS
    'Puts the mark of each lane of a queue right before its first ready message, so that what enters at the mark comes first, and opens lanes that are used.';
