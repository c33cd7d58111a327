CREATE OR REPLACE FUNCTION messages.health_dispatches() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH open AS (
        SELECT d.*, clock_timestamp() - coalesce(d.seen_at, d.opened_at) AS unseen FROM messages.dispatch d WHERE d.ended_at IS NULL),
    worst AS (
        SELECT o.*, o.unseen > o.lease_for AS lost FROM open o WHERE o.unseen > o.lease_for / 2 ORDER BY o.unseen / extract(epoch FROM o.lease_for) DESC LIMIT 1)
    SELECT CASE WHEN worst.run_id IS NULL THEN 'ok' WHEN worst.lost THEN 'critical' ELSE 'warning' END,
           CASE WHEN worst.run_id IS NULL THEN format('open dispatches: %s', (SELECT count(*) FROM open))
                ELSE format('run %s of DAG %s was last seen %s ago, and its messages are leased for %s',
                            worst.run_id, worst.dag_id, date_trunc('second', worst.unseen), worst.lease_for) END,
           CASE WHEN worst.run_id IS NOT NULL THEN '-- nobody asks Airflow for the runs: schedule a PgQueueReconcileOperator' END
      FROM (VALUES (true)) AS one (row) LEFT JOIN worst ON true
$$;
COMMENT ON FUNCTION messages.health_dispatches() IS
    'A check of health(). The open dispatch whose run nobody has seen for the largest part of its lease: half of it is a warning, all of it critical, because its messages may be delivered again.';
