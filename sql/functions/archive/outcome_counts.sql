CREATE OR REPLACE FUNCTION messages.outcome_counts(
    ids             bigint[] DEFAULT NULL,
    reference       text     DEFAULT NULL,
    queue_name      text     DEFAULT NULL,
    follow_requeues boolean  DEFAULT false
) RETURNS TABLE (result text, number bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF outcome_counts.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(outcome_counts.queue_name, 'observe');
    END IF;
    IF outcome_counts.ids IS NOT NULL THEN
        RETURN QUERY SELECT o.result, count(*) FROM messages.message_outcomes(outcome_counts.ids, outcome_counts.follow_requeues) o GROUP BY o.result;
        RETURN;
    END IF;
    -- One statement, and so one snapshot: a message is never counted in the queue and in the archive.
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT * FROM messages.session_reach)
    SELECT found.result, count(*) FROM reach r CROSS JOIN LATERAL (
        SELECT m.queue_name, NULL::text AS result FROM messages.message_rows m WHERE m.reference = outcome_counts.reference
        UNION ALL
        SELECT a.queue_name, CASE WHEN outcome_counts.follow_requeues AND a.remedy IS NULL AND a.result NOT IN ('success', 'cancelled') THEN NULL ELSE a.result END
          FROM messages.archive_rows a
         -- The message that repeats it has the same reference, and counts in its place.
         WHERE a.reference = outcome_counts.reference AND a.remedy IS DISTINCT FROM 'requeued') found
     WHERE (r.everything OR found.queue_name = ANY (r.queue_names))
       AND (outcome_counts.queue_name IS NULL OR found.queue_name = outcome_counts.queue_name)
     GROUP BY found.result;
END $$;
COMMENT ON FUNCTION messages.outcome_counts(bigint[], text, text, boolean) IS
    'How many of these messages ended with each result, by ids, or by reference and queue: result is NULL for those that are not finished, and unknown for ids that this login may not observe or that do not exist. By reference, a message that was requeued counts as the one that repeats it. follow_requeues as in message_outcomes. PQ001: unknown queue.';
