CREATE OR REPLACE FUNCTION messages.archive(
    lock_token uuid,
    ids        bigint[],
    result     text  DEFAULT 'success',
    details    text  DEFAULT NULL,
    handled_by text  DEFAULT NULL,
    outcomes   jsonb DEFAULT NULL,
    output     jsonb DEFAULT NULL,
    failure    jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Without a handler for it, which would be a subtransaction, and a tenth of the cost.
SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF archive.result IS DISTINCT FROM 'success' OR num_nonnulls(archive.outcomes, archive.output, archive.failure) > 0 THEN
        PERFORM messages.check_result(archive.result), messages.check_outcomes(archive.outcomes, archive.output, archive.failure);
    END IF;
    -- Not now(), here and wherever a lease is judged: the caller's transaction may have begun before the lease ended.
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.message_rows m
         WHERE m.id = ANY (archive.ids) AND m.lock_token = archive.lock_token AND m.lock_expires_at > clock_timestamp()
        RETURNING m.*),
    judged AS (
        SELECT mine.*, coalesce(o.outcome ->> 'result', archive.result) AS result,
               left(coalesce(o.outcome ->> 'details', archive.details), 4000) AS details,
               coalesce(o.outcome -> 'output', archive.output) AS output,
               coalesce(o.outcome -> 'failure', archive.failure) AS failure
          FROM mine CROSS JOIN LATERAL (
            SELECT CASE WHEN archive.outcomes IS NOT NULL THEN archive.outcomes -> mine.id::text END AS outcome) o),
    -- Most leases are finished as a whole and in their order; the timer of another finds nothing when its time comes.
    stopped AS (
        DELETE FROM messages.timer t
         WHERE (t.queue_name, t.at) = (SELECT m.queue_name, m.lock_expires_at FROM mine m LIMIT 1) AND t.ids = ARRAY(SELECT m.id FROM mine m)),
    archived AS (
        INSERT INTO messages.archive_rows AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
                                                result, handled_by, details, reference, topic, group_key, output, failure,
                                                fingerprint, headers, message)
        SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
               result, left(coalesce(archive.handled_by, locked_by), 1024), details, reference, topic, group_key, output, failure,
               CASE WHEN result NOT IN ('success', 'cancelled') THEN messages.fingerprint(result, details, failure) END, headers, message
          FROM judged
        RETURNING id, archived_at, queue_name, result, fingerprint, requeues, group_key)
    SELECT a.id FROM archived a
     WHERE CASE WHEN a.fingerprint IS NOT NULL OR a.group_key IS NOT NULL
                THEN (SELECT messages.after_archive(ARRAY(SELECT ROW(e.*)::messages.ended_message FROM archived e
                                                           WHERE e.fingerprint IS NOT NULL OR e.group_key IS NOT NULL)))
                ELSE true END;
END $$;
COMMENT ON FUNCTION messages.archive(uuid, bigint[], text, text, text, jsonb, jsonb, jsonb) IS
    'Finishes leased messages and returns the ids; an id that is missing was lost. outcomes {"id": {"result", "details", "output", "failure"}} overrides these for single messages. PQ004: bad result, or an output or failure that is too large; 55P03: another transaction has one of them for more than three seconds.';
