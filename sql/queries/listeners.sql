-- Nobody can see what another session listens to: these are the sessions that called themselves a listener or a worker.
SELECT a.application_name AS name, a.client_addr::text AS address, a.backend_start AS since, a.state_change AS active_at
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
   AND (a.application_name LIKE 'pgqueue%%' AND a.application_name <> 'pgqueue:page')
 ORDER BY a.backend_start LIMIT 50
