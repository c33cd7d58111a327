CREATE OR REPLACE FUNCTION messages.message_outcomes(
    ids             bigint[],
    follow_requeues boolean DEFAULT false,
    with_output     boolean DEFAULT false
) RETURNS TABLE (id bigint, last_id bigint, queue_name text, result text, attempts smallint, failure text, fingerprint text, output jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    -- One statement, and so one snapshot: a message is never seen between the queue and the archive.
    WITH RECURSIVE chain (id, last_id, place) AS (
        SELECT DISTINCT given.id, given.id, 0 FROM unnest(message_outcomes.ids) AS given (id) WHERE given.id IS NOT NULL
        UNION ALL
        SELECT c.id, a.requeued_as, c.place + 1 FROM chain c JOIN messages.archive_rows a ON a.id = c.last_id CROSS JOIN messages.session_reach r
         WHERE message_outcomes.follow_requeues AND a.remedy = 'requeued' AND a.requeued_as > c.last_id
           AND (r.everything OR a.queue_name = ANY (r.queue_names))),
    ends AS (SELECT DISTINCT ON (c.id) c.id, c.last_id FROM chain c ORDER BY c.id, c.place DESC)
    SELECT e.id, e.last_id, coalesce(m.queue_name, a.queue_name),
           CASE WHEN m.id IS NOT NULL THEN NULL
                WHEN a.id IS NULL THEN 'unknown'
                -- It is waited for a remedy of a dead one.
                WHEN message_outcomes.follow_requeues AND a.result NOT IN ('success', 'cancelled') AND a.remedy IS NULL THEN NULL
                ELSE a.result END,
           coalesce(m.attempts, a.attempts), a.failure ->> 'error', a.fingerprint,
           CASE WHEN message_outcomes.with_output THEN a.output END
      FROM ends e
     CROSS JOIN messages.session_reach r
      LEFT JOIN LATERAL (SELECT * FROM messages.message_rows m
                          WHERE m.id = e.last_id AND (r.everything OR m.queue_name = ANY (r.queue_names))) m ON true
      LEFT JOIN LATERAL (SELECT * FROM messages.archive_rows a
                          WHERE m.id IS NULL AND a.id = e.last_id AND (r.everything OR a.queue_name = ANY (r.queue_names)) LIMIT 1) a ON true
     ORDER BY e.id
$$;
COMMENT ON FUNCTION messages.message_outcomes(bigint[], boolean, boolean) IS
    'What became of messages, by id: result is NULL while a message is not finished, and unknown if there is none that this login may observe. With follow_requeues, last_id is the latest message that repeats it, and a dead one without a remedy is not finished. failure is the class of the error; output, only on demand, is what the handler returned.';
