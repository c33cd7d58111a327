CREATE OR REPLACE FUNCTION messages.fair_places(queue_name text, priority integer, keys text[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
-- Without statistics the planner would sort all of the lane to find the last message of a key.
AS $$
#variable_conflict use_column
DECLARE
    front CONSTANT timestamptz := coalesce(messages.fair_front(fair_places.queue_name, fair_places.priority), clock_timestamp());
BEGIN
    -- A turn of all keys takes 32 microseconds of the lane. In it each key has one of these, by its hash: its places lie own + n * 32
    -- microseconds after the epoch. Each message gets the first place of its key that lies behind the front and behind the last message of
    -- the key, and those after it the next ones.
    RETURN ARRAY(
        SELECT 'epoch'::timestamptz + (turn.own + (turn.next + turn.nth) * 32) * interval '1 us'
          FROM (SELECT last.number, last.nth, last.own,
                       ((extract(epoch FROM greatest(front, max(last.at) OVER (PARTITION BY last.key))) * 1000000)::bigint
                        - last.own + 32) / 32 AS next
                  FROM (SELECT k.*, m.at
                          FROM (SELECT given.key, given.number, hashtext(given.key) & 31 AS own,
                                       row_number() OVER (PARTITION BY given.key ORDER BY given.number) - 1 AS nth
                                  FROM unnest(keys) WITH ORDINALITY AS given (key, number)) k
                          -- One step in the index for each key. What lies more than a minute ahead does not count.
                          LEFT JOIN LATERAL (
                            SELECT coalesce(m.due_at, m.visible_at) AS at FROM messages.message_rows m
                             WHERE k.nth = 0 AND m.queue_name = fair_places.queue_name COLLATE "default" AND m.fair_key = k.key COLLATE "default"
                               AND m.priority = fair_places.priority AND m.visible_at < 'infinity' AND coalesce(m.due_at, m.visible_at) > front
                               AND coalesce(m.due_at, m.visible_at) <= front + interval '1 min'
                             ORDER BY coalesce(m.due_at, m.visible_at) DESC LIMIT 1) m ON true) last) turn
         ORDER BY turn.number);
END $$;
COMMENT ON FUNCTION messages.fair_places(text, integer, text[]) IS
    'The places in a lane for messages of these keys, in this order, so that keys take turns: each message gets the next place of its key behind the front of the lane and behind the last message of the key. Does not see what others have not committed.';
