CREATE OR REPLACE FUNCTION messages.health_upkeep_lag() RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT late.severity,
           CASE WHEN run.ahead THEN 'the time of the last upkeep lies ahead: the clock was wrong then, and no upkeep ran since; it is due every minute'
                WHEN run.done_by IS NULL THEN format('no upkeep ran since the installation %s ago; it is due every minute', date_trunc('second', run.age))
                ELSE format('the last upkeep was %s ago, by %s; it is due every minute', date_trunc('second', run.age), run.done_by) END,
           CASE WHEN late.severity <> 'ok' THEN 'SELECT messages.upkeep() -- and every minute from now on: '
                || CASE WHEN messages.cron_database() = current_database() THEN 'the check cron_jobs says how, or ' ELSE '' END
                || 'start the DAG pgqueue_upkeep' END
      FROM (SELECT max(u.done_by) AS done_by, coalesce(max(u.finished_at) > clock_timestamp(), false) AS ahead, clock_timestamp() - coalesce(
                   max(u.finished_at), (SELECT min(m.applied_at) FROM messages.schema_migration m)) AS age
              FROM messages.upkeep_run u) run
     CROSS JOIN LATERAL (SELECT CASE WHEN run.ahead THEN 'critical' WHEN run.age <= '3 minutes' THEN 'ok' WHEN run.age <= '15 minutes' THEN 'warning'
                                     ELSE 'critical' END AS severity) late
$$;
COMMENT ON FUNCTION messages.health_upkeep_lag() IS
    'A check of health(). When the last upkeep was, and who did it; before the first one, when the schema was installed.';
