CREATE OR REPLACE FUNCTION messages.record_history(xids_at_once bigint DEFAULT 200000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    last     messages.history_progress;
    newest   bigint      := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    up_to    bigint;
    complete boolean;
    rows     bigint      := 0;
BEGIN
    SELECT * INTO last FROM messages.history_progress FOR UPDATE;
    IF last.next_xid > greatest(newest, pg_current_xact_id()::text::bigint + 1) THEN
        PERFORM messages.begin_history();                       -- a copy, on a server that has seen less
        RETURN 0;
    END IF;
    -- What was under way at the end of the range has had a minute to commit. A time that lies ahead counts as none.
    IF last.next_at <= moment - interval '50 s' OR last.next_at > moment THEN
        -- After a pause there is much to count. That is done in parts, for at most half a second.
        LOOP
            up_to := least(last.next_xid, last.counted_xid + record_history.xids_at_once);
            complete := up_to = last.next_xid;
            rows := rows + messages.count_history(last.counted_xid, up_to, last.counted_id, CASE WHEN complete THEN last.next_id ELSE last.counted_id END,
                                                  least(last.counted_at, moment) - interval '1 day');
            last.counted_xid := up_to;
            EXIT WHEN complete OR clock_timestamp() > moment + interval '0.5 s';
        END LOOP;
        IF complete THEN
            last.counted_at := last.next_at;
            last.counted_id := last.next_id;
            last.next_at := moment;
            last.next_xid := newest;
            last.next_id := coalesce(pg_sequence_last_value('messages.message_id_seq'), 0);
        END IF;
    END IF;
    UPDATE messages.history_progress p
       SET recorded_at = moment, counted_at = last.counted_at, counted_xid = last.counted_xid, counted_id = last.counted_id,
           next_at = last.next_at, next_xid = last.next_xid, next_id = last.next_id;
    -- The row of grain all has each queue as the last upkeep saw it: what has changed since is recorded.
    WITH changed AS MATERIALIZED (
        SELECT s.*, moment - s.oldest_age AS oldest_at
          FROM messages.status() s LEFT JOIN messages.history h ON h.queue_name = s.queue_name AND h.grain = 'all'
         WHERE (s.depth, s.ready, s.leased, s.delayed, s.dead)
               IS DISTINCT FROM (coalesce(h.depth, 0), coalesce(h.ready, 0), coalesce(h.leased, 0), coalesce(h.delayed, 0), coalesce(h.dead, 0))
            OR (s.oldest_age IS NULL) <> (h.oldest_at IS NULL) OR abs(date_part('epoch', moment - s.oldest_age - h.oldest_at)) > 2)
    INSERT INTO messages.history AS t (queue_name, grain, bucket_at, depth, depth_max, ready, leased, delayed, dead, oldest_at)
    SELECT c.queue_name, g.grain, CASE WHEN g.grain = 'all' THEN 'epoch' ELSE date_trunc(g.grain, moment) END,
           c.depth, c.depth, c.ready, c.leased, c.delayed, c.dead, c.oldest_at
      FROM changed c CROSS JOIN unnest(ARRAY['minute', 'hour', 'day', 'all']) AS g (grain)
    ON CONFLICT (queue_name, grain, bucket_at) DO UPDATE SET
        depth = excluded.depth, depth_max = greatest(excluded.depth_max, t.depth_max), ready = excluded.ready, leased = excluded.leased,
        delayed = excluded.delayed, dead = excluded.dead, oldest_at = excluded.oldest_at;
    -- A row without a queue says that an upkeep looked in this minute.
    INSERT INTO messages.history (queue_name, grain, bucket_at) VALUES ('', 'minute', date_trunc('minute', moment)) ON CONFLICT DO NOTHING;
    DELETE FROM messages.history h WHERE h.grain = 'all' AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = h.queue_name);
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.record_history(bigint) IS
    'Records what each queue holds now, if it has changed, and what went through it up to the time before the last upkeep, which is at least 50 seconds ago; returns how many minutes of a queue it counted. Each message is counted once. What a transaction publishes or archives that stays open for longer is not counted. Stops after about half a second and continues the next time.';
