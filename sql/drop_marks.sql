-- The first step of uninstall.sql: drops the marks of many queues, some hundred in each transaction, because what a transaction drops is
-- locked until its end. A thousand at most are left to the transaction that drops the schema, so a smaller one goes as a whole or not at all.
DO $$
DECLARE
    batch text;
BEGIN
    IF to_regproc('messages.check_lock_room') IS NOT NULL THEN     -- not in a schema from before the first release
        PERFORM messages.check_lock_room('uninstalling', (
            SELECT count(*) FROM pg_class c WHERE c.relnamespace = to_regnamespace('messages') AND c.relname !~ '^mark_[0-9]+$'));
    END IF;
    LOOP
        SELECT string_agg(format('messages.%I', marks.relname), ', ') INTO batch FROM (
            SELECT c.relname FROM pg_class c
             WHERE c.relnamespace = to_regnamespace('messages') AND c.relkind = 'S' AND c.relname ~ '^mark_[0-9]+$'
             ORDER BY c.relname LIMIT 500 OFFSET 1000) marks;
        EXIT WHEN batch IS NULL;
        EXECUTE 'DROP SEQUENCE ' || batch;
        COMMIT;
    END LOOP;
END $$;
