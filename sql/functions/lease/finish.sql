CREATE OR REPLACE FUNCTION messages.finish(
    lock_token uuid, ids bigint[], result text, details text, handled_by text, outcomes jsonb, output jsonb, failure jsonb,
    OUT done bigint[], OUT queue_name text, OUT entered bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Without a handler for it, which would be a subtransaction, and a tenth of the cost.
SET lock_timeout = '3s'
-- By the index of the ids, so that two calls lock what both have in one order.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    held record;
BEGIN
    -- Not now(), here and wherever a lease is judged: the caller's transaction may have begun before the lease ended.
    IF finish.result = 'success' AND num_nonnulls(finish.outcomes, finish.output, finish.failure, finish.details) = 0 THEN
        WITH mine AS (
            DELETE FROM messages.message_rows m
             WHERE m.id = ANY (finish.ids) AND m.lock_token = finish.lock_token AND m.lock_expires_at > clock_timestamp()
            RETURNING m.id, m.created_at, m.leased_at, m.requeued_from, m.priority, m.attempts, m.requeues, m.queue_name,
                      m.locked_by, m.reference, m.topic, m.group_key, m.place, m.headers, m.message, m.lock_expires_at),
        archived AS (
            INSERT INTO messages.archive_rows (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                               handled_by, reference, topic, group_key, headers, message)
            SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, 'success',
                   left(coalesce(finish.handled_by, locked_by), 1024), reference, topic, group_key, headers, message FROM mine)
        SELECT array_agg(m.id) AS ids, min(m.queue_name) AS queue_name, min(m.lock_expires_at) AS at, NULL::messages.ended_message[] AS dead,
               array_agg(m.group_key) FILTER (WHERE m.group_key IS NOT NULL) AS keys,
               array_agg(m.place) FILTER (WHERE m.group_key IS NOT NULL) AS places
          INTO held FROM mine m;
    ELSE
        PERFORM messages.check_result(finish.result), messages.check_outcomes(finish.outcomes, finish.output, finish.failure);
        WITH mine AS (
            DELETE FROM messages.message_rows m
             WHERE m.id = ANY (finish.ids) AND m.lock_token = finish.lock_token AND m.lock_expires_at > clock_timestamp()
            RETURNING m.*),
        judged AS (
            SELECT mine.*, coalesce(o.outcome ->> 'result', finish.result) AS result,
                   left(coalesce(o.outcome ->> 'details', finish.details), 4000) AS details,
                   coalesce(o.outcome -> 'output', finish.output) AS output,
                   coalesce(o.outcome -> 'failure', finish.failure) AS failure
              FROM mine CROSS JOIN LATERAL (SELECT finish.outcomes -> mine.id::text AS outcome) o),
        archived AS (
            INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                                                    handled_by, details, reference, topic, group_key, output, failure, fingerprint, headers, message)
            SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
                   left(coalesce(finish.handled_by, locked_by), 1024), details, reference, topic, group_key, output, failure,
                   CASE WHEN result NOT IN ('success', 'cancelled') THEN messages.fingerprint(result, details, failure) END, headers, message
              FROM judged
            RETURNING id, archived_at, queue_name, result, fingerprint, requeues, group_key)
        SELECT array_agg(m.id) AS ids, min(m.queue_name) AS queue_name, min(m.lock_expires_at) AS at,
               array_agg(ROW(a.*)::messages.ended_message) FILTER (WHERE a.fingerprint IS NOT NULL) AS dead,
               array_agg(m.group_key) FILTER (WHERE m.group_key IS NOT NULL) AS keys,
               array_agg(m.place) FILTER (WHERE m.group_key IS NOT NULL) AS places
          INTO held FROM mine m JOIN archived a ON a.id = m.id;
    END IF;
    done := held.ids;
    queue_name := held.queue_name;
    -- Most leases are finished as a whole and in their order; the timer of another finds nothing when its time comes.
    DELETE FROM messages.timer t WHERE t.queue_name = held.queue_name AND t.at = held.at AND t.ids = held.ids;
    IF held.dead IS NOT NULL THEN
        PERFORM messages.record_dead(held.dead);
    END IF;
    IF held.keys IS NOT NULL THEN
        entered := messages.next_of_groups(held.queue_name, held.keys, held.places);
    END IF;
END $$;
COMMENT ON FUNCTION messages.finish(uuid, bigint[], text, text, text, jsonb, jsonb, jsonb) IS
    'Does what archive does, but does not ring: returns the ids, their queue, and which messages of their groups entered their lanes in their place.';
