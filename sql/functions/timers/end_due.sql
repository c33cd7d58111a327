CREATE OR REPLACE FUNCTION messages.end_due(
    queue_name   text,
    max_messages integer DEFAULT 1000,
    due_since    timestamptz DEFAULT '-infinity',
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
    moment timestamptz := clock_timestamp();
    known  bigint[];
    tokens uuid[];
    ended  bigint[];
    free   bigint[];
BEGIN
    WITH due AS (
        DELETE FROM messages.timer t WHERE t.ctid = ANY (ARRAY(
            SELECT first.tid FROM (
                SELECT next.tid, sum(next.number) OVER (ORDER BY next.at, next.tid) - next.number AS before FROM (
                    SELECT t.ctid AS tid, t.at, cardinality(t.ids) AS number FROM messages.timer t
                     WHERE t.queue_name = end_due.queue_name COLLATE "default" AND t.at <= moment AND t.at > end_due.due_since
                     ORDER BY t.at LIMIT end_due.max_messages FOR UPDATE SKIP LOCKED) next) first
             WHERE first.before < end_due.max_messages))
        RETURNING t.lock_token, t.ids)
    SELECT array_agg(one.id), array_agg(d.lock_token) INTO known, tokens FROM due d CROSS JOIN unnest(d.ids) AS one (id);
    more := coalesce(cardinality(known) >= end_due.max_messages, false);
    freed := 0;
    archived := 0;
    IF known IS NULL THEN
        RETURN;
    END IF;
    -- A message that was leased again since has a timer of its own; one that was given a longer delay waits for its end.
    WITH over AS MATERIALIZED (
        SELECT m.id, m.expires_at <= moment
                     OR m.lock_expires_at IS NOT NULL AND m.attempts + (m.lock_token IS NULL)::integer >= q.max_attempts AS is_last
          FROM unnest(known, tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
          JOIN messages.queue q ON q.queue_name = m.queue_name
         WHERE coalesce(m.lock_expires_at, least(m.visible_at, m.expires_at)) <= moment
           AND (t.lock_token IS NULL OR t.lock_token = m.lock_token OR m.expires_at <= moment))
    SELECT array_agg(o.id) FILTER (WHERE o.is_last), array_agg(o.id) FILTER (WHERE o.is_last IS NOT TRUE) INTO ended, free FROM over o;
    archived := messages.archive_ended(ended, moment);
    freed := messages.come_back(end_due.queue_name, free);
    -- Those that are leased for longer by now, and those that another session has locked, keep a timer.
    WITH kept AS MATERIALIZED (            -- or the planner walks the queue in the order of the groups
        SELECT m.queue_name, greatest(m.lock_expires_at, moment + interval '100 ms') AS at, m.lock_token, m.id
          FROM unnest(known, tokens) AS t (id, lock_token) JOIN messages.message_rows m ON m.id = t.id
         WHERE m.lock_expires_at IS NOT NULL AND (t.lock_token IS NULL OR t.lock_token = m.lock_token) OR m.expires_at <= moment
            OR m.due_at IS NOT NULL AND m.visible_at <= moment),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, lock_token, ids)
        SELECT k.queue_name, k.at, k.lock_token, array_agg(DISTINCT k.id) FROM kept k GROUP BY 1, 2, 3)
    -- Where all are locked, there is no more to do for now.
    SELECT more AND count(*) FILTER (WHERE k.at = moment + interval '100 ms') < cardinality(known) INTO more FROM kept k;
END $$;
COMMENT ON FUNCTION messages.end_due(text, integer, timestamptz) IS
    'Ends what the timers of a queue say is due, for about max_messages messages, or the one lease that is larger, and since this time: archives what is out of attempts or past its expires_at, and lets the others come back. Returns how many it freed and archived, and whether more may be due.';
