CREATE OR REPLACE FUNCTION messages.come_back(queue_name text, ids bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    entered bigint[];
BEGIN
    WITH free AS MATERIALIZED (
        SELECT m.ctid AS tid, m.id, m.queue_name, m.priority, coalesce(m.due_at, m.visible_at) AS was,
               CASE WHEN m.visible_at = 'infinity' THEN m.fair_key END AS turn_of
          FROM messages.message_rows m
         WHERE m.id = ANY (ids) AND coalesce(m.lock_expires_at <= moment, true)
           -- It may have got a new delay since it was found to be due.
           AND (m.visible_at <= moment OR m.visible_at = 'infinity') FOR UPDATE SKIP LOCKED),
    -- Microseconds keep those in their order that enter at one mark, which goes back to the first of them.
    -- Where keys take turns they enter at the front, which may lie behind the mark; those that waited behind others of their groups, behind it.
    front AS MATERIALIZED (
        SELECT l.queue_name, l.priority, l.mark, marked.at AS marked,
               coalesce(CASE WHEN q.fair_by IS NOT NULL THEN messages.fair_front(l.queue_name, l.priority) END, marked.at) AS begins
          FROM messages.lane l JOIN messages.queue q ON q.queue_name = l.queue_name
         CROSS JOIN LATERAL (SELECT messages.stored_time(l.mark, moment) AS at) marked
         WHERE l.queue_name = come_back.queue_name COLLATE "default" AND l.priority = ANY (ARRAY(SELECT DISTINCT f.priority FROM free f))),
    numbered AS (
        SELECT f.*, l.mark, l.marked, begins,
               CASE WHEN f.turn_of IS NULL THEN begins - row_number() OVER (ORDER BY f.was DESC, f.id DESC) * interval '1 us'
                    -- The next place of its key, as in fair_places: at the front, all that wait behind it would come before newcomers, too.
                    ELSE 'epoch'::timestamptz + (own + (front_at - own + 32) / 32 * 32) * interval '1 us' END AS before
          FROM free f JOIN front l ON l.queue_name = f.queue_name AND l.priority = f.priority
         CROSS JOIN LATERAL (
            SELECT hashtext(f.turn_of) & 31 AS own, (extract(epoch FROM begins) * 1000000)::bigint AS front_at) turn),
    moved AS (
        SELECT messages.store_time(n.mark, min(n.before)) FROM numbered n WHERE n.was < n.begins AND n.before < n.marked GROUP BY n.mark),
    back AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL, due_at = NULL,
               visible_at = CASE WHEN n.was < n.begins THEN n.before ELSE n.was END,
               -- A lease taken by plain SQL has no token and did not count its attempt, so its end counts it.
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL AND m.lock_token IS NULL)::integer, 32767)
          FROM numbered n WHERE m.ctid = n.tid
        RETURNING m.id)
    SELECT array_agg(b.id) INTO entered FROM back b WHERE (SELECT count(*) FROM moved) >= 0;
    IF entered IS NOT NULL THEN
        PERFORM messages.ring_for(come_back.queue_name, entered[1]);
    END IF;
    RETURN coalesce(cardinality(entered), 0);
END $$;
COMMENT ON FUNCTION messages.come_back(text, bigint[]) IS
    'Lets messages of a queue come back to their place in the order, or, where leases have passed it, to the mark: in front of all that leases have not reached. In a queue where keys take turns, one that waited behind others of its group comes back to the next place of its key instead. Ends the leases that they had, rings, and returns how many; leaves out what is leased, delayed, or locked by another session.';
