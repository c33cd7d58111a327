-- Everything belongs to messages_owner, which cannot log in, so that no function runs with the rights of the login that
-- installed it. Only objects of other owners are altered, because ALTER locks them.
DO $$
DECLARE
    thing text;
    locks bigint;
BEGIN
    IF current_setting('messages.roles', true) = 'off'
       OR pg_has_role(current_user, to_regrole('messages_owner'), 'USAGE') IS NOT TRUE THEN
        RETURN;
    END IF;
    SELECT count(*) INTO locks FROM pg_class c
     WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> to_regrole('messages_owner');
    PERFORM messages.check_lock_room('giving the schema to messages_owner', locks);
    FOR thing IN
        SELECT things.thing FROM (
            SELECT 1 AS place, 'SCHEMA messages' AS thing, nspowner AS owner FROM pg_namespace WHERE nspname = 'messages'
            UNION ALL
            SELECT 2, format('%s messages.%I', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname),
                   c.relowner
              FROM pg_class c
             WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
               -- The sequence of an identity column goes with its table.
               AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                                  AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
            UNION ALL
            SELECT 3, format('TYPE messages.%I', t.typname), t.typowner
              FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
             WHERE t.typnamespace = 'messages'::regnamespace
            UNION ALL
            SELECT 4, format('FUNCTION %s', p.oid::regprocedure), p.proowner
              FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace) things
         WHERE things.owner <> to_regrole('messages_owner') ORDER BY things.place, things.thing
    LOOP
        EXECUTE format('ALTER %s OWNER TO messages_owner', thing);
    END LOOP;
END $$;
