-- Nothing happens where pg_cron does no upkeep.
SELECT messages.uninstall_cron();
