CREATE OR REPLACE FUNCTION messages.enter(queue_name text, ids bigint[], places smallint[] DEFAULT NULL, own timestamptz[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    back   record;
BEGIN
    -- Each keeps its place, or, where leases have passed it, gets one at the mark; the last at the mark itself, the others microseconds
    -- before. Where keys take turns, the front may lie behind the mark.
    WITH free AS MATERIALIZED (
        SELECT m.ctid AS tid, coalesce(e.place, m.place) AS place, coalesce(e.own, m.due_at, m.visible_at) AS own,
               cardinality(ids) - e.number + (m.fair_key IS NOT NULL)::integer AS after, l.mark,
               marked.at AS marked, coalesce(CASE WHEN m.fair_key IS NOT NULL THEN messages.fair_front(m.queue_name, m.priority) END, marked.at) AS begins
          FROM unnest(ids, places, own) WITH ORDINALITY AS e (id, place, own, number) JOIN messages.message_rows m ON m.id = e.id
          JOIN messages.lane l ON l.queue_name = m.queue_name AND l.priority = m.priority
         CROSS JOIN LATERAL (SELECT messages.stored_time(l.mark, moment) AS at) marked
         WHERE coalesce(m.lock_expires_at <= moment, true)
           -- Meanwhile it may have got a new delay, or another session may have let it in.
           AND CASE WHEN e.place IS NULL THEN m.visible_at <= moment ELSE m.visible_at = 'infinity' END
           FOR UPDATE OF m SKIP LOCKED),
    entered AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL, due_at = NULL, place = f.place,
               visible_at = CASE WHEN f.own >= f.begins THEN f.own ELSE f.begins - f.after * interval '1 us' END,
               -- A lease taken by plain SQL has no token and did not count its attempt, so its end counts it.
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL AND m.lock_token IS NULL)::integer, 32767)
          FROM free f WHERE m.ctid = f.tid
        RETURNING m.id, m.visible_at, f.mark, f.marked)
    SELECT array_agg(e.id) AS ids, array_agg(e.mark) FILTER (WHERE e.visible_at < e.marked) AS marks, array_agg(e.visible_at) FILTER (WHERE e.visible_at < e.marked) AS places
      INTO back FROM entered e;
    IF back.ids IS NULL THEN
        RETURN '{}';
    END IF;
    IF back.marks IS NOT NULL THEN
        PERFORM messages.store_time(b.mark, least(messages.stored_time(b.mark, moment), min(b.at) - interval '1 us')) FROM unnest(back.marks, back.places) AS b (mark, at) GROUP BY b.mark;
    END IF;
    -- A lease may move the mark past them before this is committed. Then this timer finds them behind it, and they enter again.
    INSERT INTO messages.timer (queue_name, at, ids) VALUES (enter.queue_name, moment + interval '50 ms', back.ids);
    RETURN back.ids;
END $$;
COMMENT ON FUNCTION messages.enter(text, bigint[], smallint[], timestamptz[]) IS
    'Puts messages of a queue into their lanes, in this order, each at its place, or, where leases have passed that, at the mark: before all that leases have not reached. Ends the leases that they had. With places, gives each its place in its group, and with own its place in the order. Returns those that entered; leaves out what is leased, delayed, or locked by another session. Does not ring.';
