CREATE OR REPLACE FUNCTION messages.archive_ended(queue_name text, ids bigint[], moment timestamptz, OUT archived bigint, OUT entered bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    held record;
BEGIN
    -- One statement, one snapshot: what it archives is what it deletes.
    WITH gone AS (
        DELETE FROM messages.message_rows m WHERE m.ctid = ANY (ARRAY(
            SELECT m.ctid FROM messages.message_rows m
             WHERE m.id = ANY (archive_ended.ids) AND coalesce(m.lock_expires_at <= archive_ended.moment, m.expires_at <= archive_ended.moment)
               FOR UPDATE SKIP LOCKED))
        RETURNING m.*),
    archived AS (
        INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                                handled_by, details, reference, topic, group_key, fingerprint, headers, message)
        SELECT g.id, g.created_at, g.leased_at, g.requeued_from, g.priority,
               least(g.attempts + (g.lock_expires_at IS NOT NULL AND g.lock_token IS NULL)::integer, 32767), g.requeues, g.queue_name,
               why.result, g.locked_by, why.details, g.reference, g.topic, g.group_key,
               messages.fingerprint(why.result, NULL, NULL), g.headers, g.message
          FROM gone g CROSS JOIN LATERAL (
            SELECT CASE WHEN g.lock_expires_at IS NULL THEN 'expired' ELSE 'lock_expired' END AS result,
                   CASE WHEN g.lock_expires_at IS NULL THEN format('not handled by %s', g.expires_at)
                        ELSE format('the lease ended at %s without a result', g.lock_expires_at) END AS details) why
        RETURNING a.id, a.archived_at, a.queue_name, a.result, a.fingerprint, a.requeues, a.group_key)
    SELECT array_agg(ROW(a.*)::messages.ended_message) AS dead,
           array_agg(g.group_key) FILTER (WHERE g.group_key IS NOT NULL) AS keys,
           array_agg(g.place) FILTER (WHERE g.group_key IS NOT NULL) AS places
      INTO held FROM gone g JOIN archived a ON a.id = g.id;
    archived := coalesce(cardinality(held.dead), 0);
    entered := '{}';
    IF held.dead IS NOT NULL THEN
        PERFORM messages.record_dead(held.dead);
    END IF;
    IF held.keys IS NOT NULL THEN
        entered := messages.next_of_groups(archive_ended.queue_name, held.keys, held.places);
    END IF;
END $$;
COMMENT ON FUNCTION messages.archive_ended(text, bigint[], timestamptz) IS
    'Archives messages of a queue whose lease has ended as lock_expired and those that nobody had leased by their expires_at as expired, and returns how many, and which messages of their groups entered their lanes in their place; leaves out what another session has locked. Does not ring for those.';
