-- What a migration left for the calls that were under way goes at the first installation an hour later.
DO $$
DECLARE
    old regprocedure;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure FROM pg_proc p
         WHERE p.pronamespace = 'messages'::regnamespace
           AND (p.proname LIKE 'superseded\_%' OR p.oid = ANY (ARRAY[
                to_regprocedure('messages.take(text, integer, integer)'),
                to_regprocedure('messages.consumable_queue(text, integer)'),
                to_regprocedure('messages.check_publish(integer, interval, interval)'),
                to_regprocedure('messages.check_policy(integer, interval, text, integer)')]))
           AND NOT EXISTS (SELECT FROM messages.schema_migration m WHERE m.applied_at >= now() - interval '1 hour')
    LOOP
        EXECUTE format('DROP FUNCTION %s', old);
    END LOOP;
END $$;
