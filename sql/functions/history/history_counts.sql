CREATE OR REPLACE FUNCTION messages.history_counts(progress messages.history_progress, before_xid bigint, moment timestamptz)
RETURNS TABLE (queue_name text, bucket_at timestamptz, arrived_at timestamptz, result text, fingerprint text,
               wait integer, run integer, messages bigint, attempts bigint, wait_max interval, run_max interval)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    -- What was archived earlier, or is dated so, is no longer counted. This also leaves out all older partitions.
    earliest CONSTANT timestamptz := least(progress.recorded_at, moment) - interval '1 day';
    -- There are four classes for each doubling.
    per_doubling CONSTANT double precision := 4 / ln(2.0::double precision);
BEGIN
    -- STABLE, so that this sees what the statement that calls it sees.
    RETURN QUERY
    SELECT a.queue_name, date_bin('1 minute', a.archived_at, 'epoch'),
           CASE WHEN a.id > progress.last_id
                THEN date_bin('1 minute', CASE WHEN a.created_at BETWEEN earliest AND a.archived_at THEN a.created_at ELSE a.archived_at END, 'epoch') END,
           a.result, CASE WHEN a.result NOT IN ('success', 'cancelled')
                          THEN coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)) END,
           least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.waited) * 1000)))))::integer,
           least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.ran) * 1000)))))::integer,
           count(*), sum(a.attempts), max(a.waited), max(a.ran)
      FROM (SELECT f.queue_name, f.archived_at, f.created_at, f.id, f.result, f.fingerprint, f.details, f.failure, f.attempts,
                   f.leased_at - f.created_at AS waited,
                   CASE WHEN f.result IN ('success', 'failed', 'rejected') THEN f.archived_at - f.leased_at END AS ran
              FROM messages.archive_rows f
             WHERE (f.xid >= progress.next_xid OR f.xid = ANY (progress.open_xids)) AND (before_xid IS NULL OR f.xid < before_xid)
               AND f.archived_at >= earliest AND isfinite(f.archived_at)
            -- Each difference is counted once.
            OFFSET 0) a
     GROUP BY 1, 2, 3, 4, 5, 6, 7;
END $$;
COMMENT ON FUNCTION messages.history_counts(messages.history_progress, bigint, timestamptz) IS
    'What the statement that calls it sees archived by transactions that were not counted yet, before a transaction if one is given: numbers by queue, minute, result, cause and classes of durations. arrived_at is the minute of publishing, if that was not counted either.';
