CREATE OR REPLACE FUNCTION messages.message_life(message_id bigint)
RETURNS TABLE (at timestamptz, entry text, queue_name text, actor text, attempt integer, result text, error text, details text,
               until timestamptz, other_id bigint, dag_id text, run_id text, reference text, traceback text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    waiting AS MATERIALIZED (
        SELECT m.*, r.bodies OR m.queue_name = ANY (r.body_queues) AS reads FROM messages.message_rows m CROSS JOIN reach r
         WHERE m.id = message_life.message_id AND (r.everything OR m.queue_name = ANY (r.queue_names))),
    finished AS MATERIALIZED (
        SELECT a.*, r.bodies OR a.queue_name = ANY (r.body_queues) AS reads FROM messages.archive_rows a CROSS JOIN reach r
         WHERE a.id = message_life.message_id AND (r.everything OR a.queue_name = ANY (r.queue_names))),
    one AS MATERIALIZED (
        SELECT w.queue_name, w.created_at, w.reference, w.requeued_from, w.requeues, w.leased_at, w.attempts::integer AS attempts, w.locked_by AS holder
          FROM waiting w
        UNION ALL
        SELECT f.queue_name, f.created_at, f.reference, f.requeued_from, f.requeues, f.leased_at, f.attempts, f.handled_by FROM finished f),
    failed AS MATERIALIZED (
        SELECT f.*, r.bodies OR f.queue_name = ANY (r.body_queues) AS reads FROM messages.failed_attempt f CROSS JOIN reach r
         WHERE f.message_id = message_life.message_id AND EXISTS (SELECT FROM one)),
    dispatched AS MATERIALIZED (
        SELECT d.*, r.bodies OR d.queue_name = ANY (r.body_queues) AS reads FROM messages.dispatch d CROSS JOIN reach r
         WHERE d.ids @> ARRAY[message_life.message_id] AND (r.everything OR d.queue_name = ANY (r.queue_names))),
    -- Each entry says what it has of the columns that follow its queue; its place orders what happened at one time.
    life (place, at, entry, queue_name, says) AS (
        SELECT 0, o.created_at, CASE WHEN o.requeued_from IS NULL THEN 'published' ELSE 'published again' END, o.queue_name,
               jsonb_build_object('other_id', o.requeued_from, 'reference', o.reference) FROM one o
        UNION ALL
        SELECT 1, w.created_at, CASE WHEN w.visible_at = 'infinity' THEN 'waits behind its group' ELSE 'delayed' END, w.queue_name,
               jsonb_build_object('until', nullif(w.visible_at, 'infinity'))
          FROM waiting w WHERE w.attempts = 0 AND w.leased_at IS NULL AND w.visible_at > w.created_at + interval '1 millisecond'
        UNION ALL
        SELECT 2, d.opened_at, 'dispatched', d.queue_name, jsonb_build_object('actor', d.dispatched_by, 'dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d
        UNION ALL
        SELECT 3, o.leased_at, 'leased', o.queue_name,
               jsonb_build_object('actor', o.holder, 'attempt', o.attempts, 'until', (SELECT w.lock_expires_at FROM waiting w))
          FROM one o WHERE o.leased_at IS NOT NULL AND NOT EXISTS (SELECT FROM failed f WHERE f.attempt = o.attempts)
        UNION ALL
        SELECT 3, f.leased_at, 'leased', f.queue_name, jsonb_build_object('actor', f.handled_by, 'attempt', f.attempt) FROM failed f
        UNION ALL
        SELECT 4, d.started_at, 'run started', d.queue_name, jsonb_build_object('dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d WHERE d.started_at IS NOT NULL
        UNION ALL
        SELECT 4, f.failed_at, 'attempt failed', f.queue_name,
               jsonb_build_object('actor', f.handled_by, 'attempt', f.attempt, 'error', f.failure ->> 'error',
                                  'details', CASE WHEN f.reads THEN left(f.failure ->> 'message', 4000) END,
                                  'traceback', CASE WHEN f.reads THEN f.failure ->> 'traceback' END)
          FROM failed f
        UNION ALL
        SELECT 5, d.ended_at, 'run ended', d.queue_name,
               jsonb_build_object('result', d.result, 'details', CASE WHEN d.reads THEN d.details END, 'dag_id', d.dag_id, 'run_id', d.run_id)
          FROM dispatched d WHERE d.ended_at IS NOT NULL
        UNION ALL
        -- When it was given back by a release that named no error is not kept: it was ready again, or will be, at that time.
        SELECT 6, CASE WHEN w.visible_at < 'infinity' AND w.lock_expires_at IS NULL
                       THEN greatest(w.visible_at, w.leased_at, (SELECT max(f.failed_at) FROM failed f)) ELSE w.leased_at END,
               CASE WHEN w.visible_at > clock_timestamp() THEN 'waits for its next attempt' ELSE 'ready again' END, w.queue_name,
               jsonb_build_object('attempt', CASE WHEN w.lock_expires_at IS NULL THEN w.attempts ELSE w.attempts - 1 END,
                                  'error', CASE WHEN EXISTS (SELECT FROM failed) THEN NULL WHEN w.reads THEN ltrim(w.last_error)
                                                ELSE substring(w.last_error FROM '^[[:alpha:]_][[:alnum:]_.:$]*(?=: |$)') END,
                                  'until', CASE WHEN w.visible_at > clock_timestamp() THEN nullif(w.visible_at, 'infinity') END)
          FROM waiting w WHERE w.last_error IS NOT NULL AND (w.lock_expires_at IS NULL OR NOT EXISTS (SELECT FROM failed))
        UNION ALL
        SELECT 7, f.archived_at, 'archived', f.queue_name,
               jsonb_build_object('actor', f.handled_by, 'attempt', f.attempts, 'result', f.result, 'error', f.failure ->> 'error',
                                  'details', CASE WHEN f.reads THEN coalesce(f.details, left(f.failure ->> 'message', 4000)) END,
                                  'traceback', CASE WHEN f.reads THEN f.failure ->> 'traceback' END)
          FROM finished f
        UNION ALL
        SELECT 8, NULL, 'leased for a remedy', d.queue_name, jsonb_build_object('actor', d.locked_by, 'until', d.lock_expires_at)
          FROM messages.dead_message d CROSS JOIN reach r
         WHERE d.id = message_life.message_id AND d.lock_expires_at > clock_timestamp() AND (r.everything OR d.queue_name = ANY (r.queue_names))
        UNION ALL
        SELECT 9, f.remedied_at, f.remedy, f.queue_name,
               jsonb_build_object('actor', f.remedied_by, 'details', f.dismissed_for, 'other_id', f.requeued_as)
          FROM finished f WHERE f.remedy IS NOT NULL)
    SELECT l.at, l.entry, l.queue_name, s.*
      FROM life l CROSS JOIN LATERAL jsonb_to_record(l.says)
        AS s (actor text, attempt integer, result text, error text, details text, until timestamptz, other_id bigint, dag_id text, run_id text,
              reference text, traceback text)
     ORDER BY l.at NULLS LAST, l.place;
END $$;
COMMENT ON FUNCTION messages.message_life(bigint) IS
    'What is recorded of one message, in the order of time and without its body: published, or published again for other_id; delayed; each attempt, leased by actor, and how it failed; dispatched to a run; archived; requeued as other_id, or dismissed. No row for a message that is unknown, or in a queue that this login may not observe. Of an error, only whoever may read the bodies sees more than its class. Earlier attempts are known for 30 days; one whose lease ended is missing. Runs are known for 30 days after their end.';
