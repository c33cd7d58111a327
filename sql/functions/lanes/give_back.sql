CREATE OR REPLACE FUNCTION messages.give_back(queue_name text, ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    waits   record;
    entered bigint[]    := '{}';
BEGIN
    -- In its group waits what has no place there, because plain SQL leased it; and where a group
    -- has several places, what has a delay.
    WITH back AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL, place = NULL, due_at = coalesce(m.due_at, m.visible_at), visible_at = 'infinity',
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL AND m.lock_token IS NULL)::integer, 32767)
          FROM (SELECT m.ctid AS tid, m.place
                  FROM messages.message_rows m JOIN messages.queue q ON q.queue_name = m.queue_name
                 WHERE m.id = ANY (ids) AND coalesce(m.group_key, '') <> ''       -- not IS NOT NULL, which tempts the planner to walk the index of groups
                   AND coalesce(m.lock_expires_at <= moment, true)
                   AND (m.visible_at < 'infinity' OR m.lock_expires_at IS NOT NULL)
                   AND (m.place IS NULL OR q.max_leased_per_group > 1 AND m.visible_at > moment)
                   FOR UPDATE OF m SKIP LOCKED) w
         WHERE m.ctid = w.tid
        RETURNING m.group_key, w.place, m.due_at),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, ids, group_key)
        SELECT give_back.queue_name, b.due_at, '{}', b.group_key FROM back b WHERE b.due_at > moment)
    SELECT array_agg(b.group_key) AS keys, array_agg(b.place) AS places INTO waits FROM back b;
    IF waits.keys IS NOT NULL THEN
        entered := messages.next_of_groups(give_back.queue_name, waits.keys, waits.places);
    END IF;
    RETURN entered || messages.enter(give_back.queue_name, ids);
END $$;
COMMENT ON FUNCTION messages.give_back(text, bigint[]) IS
    'Ends the leases of these messages that have ended, puts those that are ready back into their lanes, and lets the next of a group in for one that must wait there again. Returns those that entered; leaves out what another session has locked. Does not ring.';
