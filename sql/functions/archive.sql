CREATE OR REPLACE FUNCTION messages.archive(
    lock_token uuid,
    ids        bigint[],
    result     text  DEFAULT 'success',
    details    text  DEFAULT NULL,
    handled_by text  DEFAULT NULL,
    outcomes   jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF archive.result IS NULL OR archive.result <> ALL (ARRAY['success', 'failed', 'rejected', 'lock_expired', 'expired']) THEN
        RAISE EXCEPTION 'result is %', coalesce(quote_literal(left(archive.result, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give success, failed, rejected, lock_expired or expired.';
    END IF;
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.message m
         WHERE m.id = ANY (archive.ids) AND m.lock_token = archive.lock_token AND m.lock_expires_at > clock_timestamp()
        RETURNING m.*)
    INSERT INTO messages.message_archive AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                               queue_name, result, handled_by, details, reference, headers, message)
    SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
           coalesce(archive.outcomes -> id::text ->> 'result', archive.result),
           coalesce(archive.handled_by, locked_by),
           left(coalesce(archive.outcomes -> id::text ->> 'details', archive.details), 4000),
           reference, headers, message
      FROM mine
    RETURNING a.id;
END $$;
COMMENT ON FUNCTION messages.archive(uuid, bigint[], text, text, text, jsonb) IS
    'Finishes leased messages and returns the ids; an id that is missing was lost. outcomes {"id": {"result", "details"}} overrides per message. PQ004: bad result.';
