CREATE OR REPLACE FUNCTION messages.fair_places(queue_name text, priority integer, keys text[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    shares jsonb;
    front  timestamptz;
BEGIN
    -- Where the leases are: the first ready message, because the mark may lie a little before it.
    SELECT q.weights, coalesce(first.at, moment) INTO shares, front
      FROM messages.queue q JOIN messages.lane l ON l.queue_name = q.queue_name AND l.priority = fair_places.priority
     CROSS JOIN LATERAL (SELECT messages.stored_time(l.mark, moment) AS begins) marked
      LEFT JOIN LATERAL (
        SELECT m.visible_at AS at FROM messages.message_rows m
         WHERE m.queue_name = fair_places.queue_name COLLATE "default" AND m.priority = fair_places.priority
           AND m.visible_at >= marked.begins AND m.visible_at <= moment AND m.lock_expires_at IS NULL
         ORDER BY m.visible_at LIMIT 1) first ON true
     WHERE q.queue_name = fair_places.queue_name COLLATE "default";
    -- A turn of all keys takes 32 microseconds, in which each key has its own one, or as many as it has weight: number n lies
    -- n * 32 / weight behind it. Each message gets the next of its key behind the front and behind the last that the key has.
    RETURN ARRAY(
        SELECT 'epoch'::timestamptz + (turn.own + (turn.next + turn.nth) * 32 / turn.weight) * interval '1 us'
          FROM (SELECT last.number, last.nth, last.own, last.weight,
                       (((extract(epoch FROM greatest(front, max(last.at) OVER (PARTITION BY last.key))) * 1000000)::bigint - last.own + 1) * last.weight + 31) / 32 AS next
                  FROM (SELECT k.*, m.at
                          FROM (SELECT given.key, given.number, hashtext(given.key) & 31 AS own, coalesce((shares -> given.key)::integer, 1) AS weight,
                                       row_number() OVER (PARTITION BY given.key ORDER BY given.number) - 1 AS nth
                                  FROM unnest(keys) WITH ORDINALITY AS given (key, number)) k
                          LEFT JOIN LATERAL (
                            SELECT coalesce(m.due_at, m.visible_at) AS at FROM messages.message_rows m
                             WHERE k.nth = 0 AND m.queue_name = fair_places.queue_name COLLATE "default" AND m.fair_key = k.key COLLATE "default"
                               AND m.priority = fair_places.priority AND coalesce(m.due_at, m.visible_at) > front
                               AND coalesce(m.due_at, m.visible_at) <= front + interval '1 min'
                             ORDER BY coalesce(m.due_at, m.visible_at) DESC LIMIT 1) m ON true) last) turn
         ORDER BY turn.number);
END $$;
COMMENT ON FUNCTION messages.fair_places(text, integer, text[]) IS
    'The places in a lane for messages of these keys, in this order, so that keys take turns: each key has the next turn of its own behind the front of the lane and behind its last message. What others have not committed is not seen.';
