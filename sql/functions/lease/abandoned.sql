CREATE OR REPLACE FUNCTION messages.abandoned(lock_token uuid, ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off
AS $$
    SELECT m.id FROM messages.message_rows m
     WHERE m.id = ANY (abandoned.ids) AND m.lock_token = abandoned.lock_token AND m.attempts > 1
       AND NOT EXISTS (SELECT FROM messages.failed_attempt f
                        WHERE f.message_id = m.id AND f.attempt = m.attempts - 1 AND NOT f.failure ? 'unfinished')
$$;
COMMENT ON FUNCTION messages.abandoned(uuid, bigint[]) IS
    'Which of these leased messages had an attempt before that ended without a result of its own: its lease ended, or its consumer did. One of those that were leased together then may end its next consumer, too, so handle them in small batches.';
