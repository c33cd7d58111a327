CREATE OR REPLACE FUNCTION messages.run_backlog(
    holder     text,
    queue_name text,
    OUT ready   bigint,
    OUT held    bigint,
    OUT waiting bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_queue(run_backlog.queue_name, 'observe');
    SELECT count(*) FILTER (WHERE free AND m.visible_at <= moment AND coalesce(m.expires_at > moment, true)),
           -- No space may follow: the name of one run may be the beginning of another's.
           count(*) FILTER (WHERE NOT free AND starts_with(lease.locked_by, run_backlog.holder)
                                  AND strpos(substr(lease.locked_by, length(run_backlog.holder) + 1), ' ') = 0),
           count(*)
      INTO ready, held, waiting
      FROM messages.message_rows m
     CROSS JOIN LATERAL (SELECT coalesce(m.lock_expires_at <= moment, true) AS free, m.locked_by) lease
     WHERE m.queue_name = run_backlog.queue_name COLLATE "default";
    waiting := waiting - ready - held;
END $$;
COMMENT ON FUNCTION messages.run_backlog(text, text) IS
    'What is left for a run of a pipeline: ready to lease now, held by leases of this holder (what run_holder returns, or that and ''PART.''), and waiting: delayed, behind others of a group, or held by others. Counts every message of the queue, and changes none: call scan() first, so that what is due counts as ready. PQ001: unknown queue.';
