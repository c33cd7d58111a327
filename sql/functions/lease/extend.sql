CREATE OR REPLACE FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_duration('lease_for', extend.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT m.ctid AS tid, m.lock_expires_at FROM messages.message_rows m
         WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > moment
         ORDER BY m.id FOR UPDATE SKIP LOCKED),
    extended AS (
        UPDATE messages.message_rows m SET lock_expires_at = moment + coalesce(
               extend.lease_for, (SELECT q.lease_for FROM messages.queue q WHERE q.queue_name = m.queue_name))
          FROM held WHERE m.ctid = held.tid
        RETURNING m.id, m.queue_name, m.lock_expires_at, m.lock_expires_at < held.lock_expires_at AS is_shorter),
    -- The timer of the lease waits for a longer one, but comes too late for one that is shorter than it was.
    timed AS (
        INSERT INTO messages.timer (queue_name, at, lock_token, ids)
        SELECT e.queue_name, max(e.lock_expires_at), extend.lock_token, array_agg(e.id) FROM extended e WHERE e.is_shorter GROUP BY e.queue_name)
    -- One that another transaction has, perhaps to end it, is not lost yet.
    SELECT m.id FROM messages.message_rows m
     WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > moment;
END $$;
COMMENT ON FUNCTION messages.extend(uuid, bigint[], interval) IS
    'Makes leases end lease_for from now (by default the lease_for of the queue), and returns the ids; an id that is missing was lost. Waits for nobody: a message that another transaction has locked keeps the end that it had. PQ004: bad duration.';
