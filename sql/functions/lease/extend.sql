CREATE OR REPLACE FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('lease_for', extend.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    UPDATE messages.message m SET lock_expires_at = clock_timestamp() + coalesce(
           extend.lease_for, (SELECT q.lease_for FROM messages.queue q WHERE q.queue_name = m.queue_name))
     WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > clock_timestamp()
    RETURNING m.id;
END $$;
COMMENT ON FUNCTION messages.extend(uuid, bigint[], interval) IS
    'Makes leases end lease_for from now (by default the lease_for of the queue), and returns the ids; an id that is missing was lost. PQ004: bad duration.';
