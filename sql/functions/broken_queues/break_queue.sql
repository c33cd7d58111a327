CREATE OR REPLACE FUNCTION messages.break_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    policy messages.queue;
    last   record;
BEGIN
    SELECT * INTO policy FROM messages.queue q
     WHERE q.queue_name = break_queue.queue_name COLLATE "default" AND q.break_after IS NOT NULL AND q.broken_since IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*) AS number, count(DISTINCT f.fingerprint) AS causes, min(f.at) AS since, least(min(f.at), min(f.leased_at)) AS leased_at INTO last
      FROM ((SELECT a.failed_at AS at, a.leased_at, a.fingerprint FROM messages.failed_attempt a
              WHERE a.queue_name = policy.queue_name ORDER BY a.failed_at DESC LIMIT policy.break_after)
            UNION ALL
            (SELECT d.archived_at, a.leased_at, d.fingerprint FROM messages.dead_message d JOIN messages.archive_rows a USING (id, archived_at)
              WHERE d.queue_name = policy.queue_name AND d.result = 'failed' ORDER BY d.archived_at DESC LIMIT policy.break_after)
            ORDER BY at DESC LIMIT policy.break_after) f;
    -- Since the first of these was leased, because a consumer archives the successes of a batch before it releases the failures. The
    -- archive has no index by queue, so that the messages of all queues are read, 100,000 at most.
    IF last.number = policy.break_after AND last.causes = 1 AND last.since > greatest(policy.created_at, moment - interval '10 minutes')
       AND NOT EXISTS (SELECT FROM (SELECT a.queue_name, a.result FROM messages.archive_rows a WHERE a.archived_at >= last.leased_at LIMIT 100000) a
                        WHERE a.queue_name = policy.queue_name AND a.result IN ('success', 'rejected')) THEN
        -- Whoever has the row breaks or changes the queue.
        UPDATE messages.queue q SET broken_since = moment
         WHERE q.ctid = (SELECT q.ctid FROM messages.queue q
                          WHERE q.queue_name = policy.queue_name AND q.broken_since IS NULL FOR NO KEY UPDATE SKIP LOCKED);
        IF FOUND THEN
            PERFORM messages.store_time(policy.probe_due, moment + least(policy.backoff_first, policy.backoff_max)), setval(policy.probe, 1, false),
                    pg_notify('queue_broken', policy.queue_name);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION messages.break_queue(text) IS
    'Breaks a queue with a break_after if its last attempts all failed with one cause, within ten minutes and without a success or a rejection in between, and rings queue_broken.';
