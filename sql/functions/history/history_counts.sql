CREATE OR REPLACE FUNCTION messages.history_counts(progress messages.history_progress, before_xid bigint, moment timestamptz)
RETURNS TABLE (queue_name text, bucket_at timestamptz, arrived_at timestamptz, result text, fingerprint text,
               wait integer, run integer, messages bigint, attempts bigint, wait_max interval, run_max interval)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- What was archived earlier, or is dated so, is no longer counted. This also leaves out all older partitions.
    earliest CONSTANT timestamptz := least(progress.noted_at, moment) - interval '1 day';
BEGIN
    -- STABLE, so that this sees what the statement that calls it sees.
    RETURN QUERY
    SELECT a.queue_name, date_trunc('minute', a.archived_at, 'UTC'),
           CASE WHEN a.id > progress.last_id
                THEN date_trunc('minute', CASE WHEN a.created_at BETWEEN earliest AND a.archived_at THEN a.created_at ELSE a.archived_at END, 'UTC') END,
           a.result, CASE WHEN a.result <> 'success' THEN coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)) END,
           least(120, greatest(0, ceil(4 / ln(2.0::float) * ln(greatest(1e-9, date_part('epoch', a.leased_at - a.created_at) * 1000)))))::integer,
           CASE WHEN a.result IN ('success', 'failed', 'rejected') THEN
               least(120, greatest(0, ceil(4 / ln(2.0::float) * ln(greatest(1e-9, date_part('epoch', a.archived_at - a.leased_at) * 1000)))))::integer END,
           count(*), sum(a.attempts), max(a.leased_at - a.created_at),
           max(a.archived_at - a.leased_at) FILTER (WHERE a.result IN ('success', 'failed', 'rejected'))
      FROM messages.message_archive a
     WHERE (a.xid >= progress.next_xid OR a.xid = ANY (progress.open_xids)) AND (before_xid IS NULL OR a.xid < before_xid)
       AND a.archived_at >= earliest AND isfinite(a.archived_at)
     GROUP BY 1, 2, 3, 4, 5, 6, 7;
END $$;
COMMENT ON FUNCTION messages.history_counts(messages.history_progress, bigint, timestamptz) IS
    'What the statement that calls it sees archived by transactions that were not counted yet, before a transaction if one is given: numbers by queue, minute, result, cause and classes of durations. arrived_at is the minute of publishing, if that was not counted either.';
