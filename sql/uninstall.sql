-- Removes the pg_cron jobs and the schema with everything in it. Messages are lost.
BEGIN;
SELECT messages.uninstall_cron();
DROP SCHEMA messages CASCADE;
COMMIT;
