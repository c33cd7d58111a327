-- Nothing happens where pg_cron does no maintenance.
SELECT messages.uninstall_cron();
