CREATE OR REPLACE FUNCTION messages.health_notify_queue(full_at double precision DEFAULT 0.25) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- The queue belongs to the whole server. A session that listens takes nothing out of it while its transaction is open.
    SELECT CASE WHEN used > greatest(full_at, 0.75) THEN 'critical' WHEN used > full_at THEN 'warning' ELSE 'ok' END,
           format('the notification queue of the server is %s %% full', round(used::numeric * 100, 4))
           || CASE WHEN used > full_at THEN
                coalesce(format('; if it listens, session %s (database %s, application %s, %s) holds it, with a transaction open for %s', behind.pid, behind.datname,
                                coalesce(nullif(behind.application_name, ''), 'without a name'), behind.state,
                                date_trunc('second', clock_timestamp() - behind.xact_start)), '; no session has a transaction open')
              ELSE '' END,
           CASE WHEN used > full_at THEN coalesce(format('SELECT pg_terminate_backend(%s)', behind.pid), 'NOTIFY new_message') END
      FROM pg_notification_queue_usage() AS used
      LEFT JOIN LATERAL (
        SELECT a.* FROM pg_stat_activity a
         WHERE used > full_at AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
         ORDER BY a.state NOT LIKE 'idle in transaction%', a.xact_start LIMIT 1) behind ON true
$$;
COMMENT ON FUNCTION messages.health_notify_queue(double precision) IS
    'A check of health(). How full the notification queue is, and which session probably keeps it from being emptied.';
