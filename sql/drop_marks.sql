-- The second step of uninstall.sql: drops the marks of many queues, some hundred in each transaction, because what a transaction drops is
-- locked until its end. A thousand at most are left to the transaction that drops the schema.
DO $$
DECLARE
    batch text;
BEGIN
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
