CREATE OR REPLACE FUNCTION messages.batch_results(queue_name text, batch text, since timestamptz, OUT total bigint, OUT results jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- A plan for these values leaves out the partitions before, and locks none of them.
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT count(*), jsonb_build_object(
               'success', count(*) FILTER (WHERE a.result = 'success'), 'failed', count(*) FILTER (WHERE a.result = 'failed'),
               'rejected', count(*) FILTER (WHERE a.result = 'rejected'), 'lock_expired', count(*) FILTER (WHERE a.result = 'lock_expired'),
               'expired', count(*) FILTER (WHERE a.result = 'expired'), 'cancelled', count(*) FILTER (WHERE a.result = 'cancelled'))
      INTO total, results
      FROM messages.archive_rows a
     WHERE a.queue_name = batch_results.queue_name AND a.headers ? 'batch' AND left(a.headers ->> 'batch', 200) = batch_results.batch
       AND a.archived_at >= batch_results.since
       -- The message that repeats it counts in its place.
       AND a.remedy IS DISTINCT FROM 'requeued';
END $$;
COMMENT ON FUNCTION messages.batch_results(text, text, timestamptz) IS
    'How many messages of a batch have ended since this time, together and by their results; one that was requeued counts as what repeats it.';
