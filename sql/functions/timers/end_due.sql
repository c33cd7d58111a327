CREATE OR REPLACE FUNCTION messages.end_due(
    queue_name   text,
    max_messages integer DEFAULT 1000,
    due_since    timestamptz DEFAULT '-infinity',
    moment       timestamptz DEFAULT clock_timestamp(),
    OUT freed    bigint,
    OUT archived bigint,
    OUT more     boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    due     record;
    seen    record;
    gone    record;
    entered bigint[] := '{}';
    ready   bigint;
    locked  bigint;
BEGIN
    WITH next AS MATERIALIZED (
        SELECT t.ctid AS tid, t.at, greatest(cardinality(t.ids), 1) AS number FROM messages.timer t
         WHERE t.queue_name = end_due.queue_name COLLATE "default" AND t.at <= moment AND t.at > end_due.due_since
         ORDER BY t.at LIMIT end_due.max_messages FOR UPDATE SKIP LOCKED),
    counted AS (
        SELECT n.tid, sum(n.number) OVER (ORDER BY n.at, n.tid) - n.number AS before FROM next n),
    taken AS (
        DELETE FROM messages.timer t
         WHERE t.ctid = ANY (ARRAY(SELECT c.tid FROM counted c WHERE c.before < end_due.max_messages))
        RETURNING t.lock_token, t.ids, t.group_key)
    SELECT array_agg(one.id) FILTER (WHERE one.id IS NOT NULL) AS ids, array_agg(t.lock_token) FILTER (WHERE one.id IS NOT NULL) AS tokens,
           array_agg(DISTINCT t.group_key) FILTER (WHERE t.group_key IS NOT NULL) AS keys, count(*) AS number INTO due
      FROM taken t LEFT JOIN unnest(t.ids) AS one (id) ON true;
    freed := 0;
    archived := 0;
    more := due.number >= end_due.max_messages;
    IF due.keys IS NOT NULL THEN
        entered := messages.next_of_groups(end_due.queue_name, due.keys);
    END IF;
    IF due.ids IS NOT NULL THEN
        -- A message that was leased again since has a timer of its own.
        SELECT array_agg(m.id) FILTER (WHERE its.is_dead) AS dead,
               array_agg(m.id ORDER BY coalesce(m.due_at, m.visible_at), m.id) FILTER (WHERE its.is_dead IS NOT TRUE) AS back
          INTO seen
          FROM unnest(due.ids, due.tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
          JOIN messages.queue q ON q.queue_name = m.queue_name JOIN messages.lane l ON l.queue_name = m.queue_name AND l.priority = m.priority
         CROSS JOIN LATERAL (
            SELECT m.expires_at <= moment
                   OR m.lock_expires_at IS NOT NULL AND m.attempts + (m.lock_token IS NULL)::integer >= q.max_attempts AS is_dead) its
         WHERE CASE WHEN m.lock_expires_at IS NOT NULL THEN m.lock_expires_at <= moment AND (t.lock_token IS NULL OR t.lock_token = m.lock_token)
                    -- The delay of a place is over, or a lease has moved the mark past it.
                    ELSE m.visible_at <= moment AND (m.due_at IS NOT NULL OR m.visible_at < messages.stored_time(l.mark, moment)) END
            OR m.expires_at <= moment AND coalesce(m.lock_expires_at <= moment, true);
        gone := messages.archive_ended(end_due.queue_name, seen.dead, moment);
        archived := gone.archived;
        entered := entered || gone.entered || messages.give_back(end_due.queue_name, coalesce(seen.back, '{}'));
        -- Those that are leased for longer by now, and those that another session has locked, keep a timer.
        WITH kept AS MATERIALIZED (
            SELECT m.queue_name, greatest(m.lock_expires_at, moment + interval '100 ms') AS at, m.lock_token, m.id
              FROM unnest(due.ids, due.tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
             WHERE m.lock_expires_at IS NOT NULL AND t.lock_token IS NOT DISTINCT FROM m.lock_token OR m.expires_at <= moment
                OR m.id = ANY (seen.dead || seen.back) AND m.id <> ALL (entered)),
        timed AS (
            INSERT INTO messages.timer (queue_name, at, lock_token, ids)
            SELECT k.queue_name, k.at, k.lock_token, array_agg(DISTINCT k.id) FROM kept k GROUP BY 1, 2, 3)
        SELECT count(*) FILTER (WHERE k.at = moment + interval '100 ms') INTO locked FROM kept k;
        -- Where all are locked, there is no more to do for now.
        more := more AND locked < cardinality(due.ids);
    END IF;
    -- What has expired meanwhile serves nobody: its own timer ends it.
    freed := (SELECT count(*) FROM messages.message_rows m WHERE m.id = ANY (entered) AND coalesce(m.expires_at > moment, true));
    -- Also one whose delay is over, or that nobody has leased since it entered its lane.
    ready := coalesce(entered[1], (SELECT m.id FROM messages.message_rows m
                                    WHERE m.id = ANY (due.ids) AND m.visible_at <= moment AND m.lock_expires_at IS NULL LIMIT 1));
    IF ready IS NOT NULL THEN
        PERFORM messages.ring_for(end_due.queue_name, ready);
    END IF;
END $$;
COMMENT ON FUNCTION messages.end_due(text, integer, timestamptz, timestamptz) IS
    'Looks at what the timers of a queue name that have been due since this time, at about max_messages messages and groups, or the one lease that is larger: archives what is out of attempts or past its expires_at, gives the other leases back, puts what leases have passed at the mark, and lets the next of the groups in. Returns how many it freed and archived, and whether more may be due.';
