-- A superuser has to name a login for the jobs.
SELECT messages.install_cron(
    CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN 'messages_cron' END);
