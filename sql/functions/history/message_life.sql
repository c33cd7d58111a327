CREATE OR REPLACE FUNCTION messages.message_life(message_id bigint)
RETURNS TABLE (at timestamptz, entry text, queue_name text, actor text, attempt integer, result text, error text, details text,
               until timestamptz, other_id bigint, dag_id text, run_id text, reference text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.everything, r.queue_names FROM messages.session_reach r),
    waiting AS MATERIALIZED (
        SELECT m.* FROM messages.message_rows m CROSS JOIN reach r
         WHERE m.id = message_life.message_id AND (r.everything OR m.queue_name = ANY (r.queue_names))),
    finished AS MATERIALIZED (
        SELECT a.* FROM messages.archive_rows a CROSS JOIN reach r
         WHERE a.id = message_life.message_id AND (r.everything OR a.queue_name = ANY (r.queue_names))),
    one AS MATERIALIZED (
        SELECT w.queue_name, w.created_at, w.reference, w.requeued_from, w.requeues, w.leased_at, w.attempts::integer AS attempts, w.locked_by AS holder
          FROM waiting w
        UNION ALL
        SELECT f.queue_name, f.created_at, f.reference, f.requeued_from, f.requeues, f.leased_at, f.attempts, f.handled_by FROM finished f),
    dispatched AS MATERIALIZED (
        SELECT d.*, o.attempts FROM messages.dispatch d CROSS JOIN reach r CROSS JOIN (SELECT max(attempts) AS attempts FROM one) o
         WHERE d.ids @> ARRAY[message_life.message_id] AND (r.everything OR d.queue_name = ANY (r.queue_names))),
    life (place, at, entry, queue_name, actor, attempt, result, error, details, until, other_id, dag_id, run_id, reference) AS (
        SELECT 0, o.created_at, CASE WHEN o.requeued_from IS NULL THEN 'published' ELSE 'published again' END, o.queue_name, NULL, NULL::integer,
               NULL, NULL, NULL, NULL::timestamptz, o.requeued_from, NULL, NULL, o.reference FROM one o
        UNION ALL
        SELECT 1, w.created_at, CASE WHEN w.visible_at = 'infinity' THEN 'waits behind its group' ELSE 'delayed' END, w.queue_name, NULL, NULL,
               NULL, NULL, NULL, nullif(w.visible_at, 'infinity'), NULL, NULL, NULL, NULL FROM waiting w
         WHERE w.attempts = 0 AND w.leased_at IS NULL AND w.visible_at > w.created_at + interval '1 millisecond'
        UNION ALL
        SELECT 2, d.opened_at, 'dispatched', d.queue_name, d.dispatched_by, NULL, NULL, NULL, NULL, NULL, NULL, d.dag_id, d.run_id, NULL FROM dispatched d
        UNION ALL
        SELECT 4, d.started_at, 'run started', d.queue_name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, d.dag_id, d.run_id, NULL
          FROM dispatched d WHERE d.started_at IS NOT NULL
        UNION ALL
        SELECT 5, d.ended_at, 'run ended', d.queue_name, NULL, NULL, d.result, NULL, d.details, NULL, NULL, d.dag_id, d.run_id, NULL
          FROM dispatched d WHERE d.ended_at IS NOT NULL
        UNION ALL
        SELECT 3, o.leased_at, 'leased', o.queue_name, o.holder, o.attempts, NULL, NULL, NULL,
               (SELECT w.lock_expires_at FROM waiting w), NULL, NULL, NULL, NULL
          FROM one o WHERE o.leased_at IS NOT NULL
        UNION ALL
        -- Only the last error is kept, and not when it was given back: it was ready again, or will be, at that time.
        SELECT 6, CASE WHEN w.visible_at < 'infinity' AND w.lock_expires_at IS NULL THEN greatest(w.visible_at, w.leased_at) ELSE w.leased_at END,
               CASE WHEN w.visible_at > clock_timestamp() THEN 'waits for its next attempt' ELSE 'ready again' END, w.queue_name, NULL,
               CASE WHEN w.lock_expires_at IS NULL THEN w.attempts ELSE w.attempts - 1 END, NULL, w.last_error, NULL,
               CASE WHEN w.visible_at > clock_timestamp() THEN nullif(w.visible_at, 'infinity') END, NULL, NULL, NULL, NULL
          FROM waiting w WHERE w.last_error IS NOT NULL
        UNION ALL
        SELECT 7, f.archived_at, 'archived', f.queue_name, f.handled_by, f.attempts, f.result, f.failure ->> 'error',
               coalesce(f.details, left(f.failure ->> 'message', 4000)), NULL, NULL, NULL, NULL, NULL FROM finished f
        UNION ALL
        SELECT 8, NULL, 'leased for a remedy', d.queue_name, d.locked_by, NULL, NULL, NULL, NULL, d.lock_expires_at, NULL, NULL, NULL, NULL
          FROM messages.dead_message d CROSS JOIN reach r
         WHERE d.id = message_life.message_id AND d.lock_expires_at > clock_timestamp() AND (r.everything OR d.queue_name = ANY (r.queue_names))
        UNION ALL
        SELECT 9, f.remedied_at, f.remedy, f.queue_name, f.remedied_by, NULL, NULL, NULL, f.dismissed_for, NULL, f.requeued_as, NULL, NULL, NULL
          FROM finished f WHERE f.remedy IS NOT NULL)
    SELECT l.at, l.entry, l.queue_name, l.actor, l.attempt, l.result, l.error, l.details, l.until, l.other_id, l.dag_id, l.run_id, l.reference
      FROM life l ORDER BY l.at NULLS LAST, l.place;
END $$;
COMMENT ON FUNCTION messages.message_life(bigint) IS
    'What is recorded of one message, in the order of time and without its body: published, or published again for other_id; delayed; leased by actor until; dispatched to a run; the last error; archived; requeued as other_id, or dismissed. No row for a message that is unknown, or in a queue that this login may not observe. Of earlier attempts only the number and the last error are known; runs are known for 30 days after their end.';
