-- The last step: what health() compares the schema with.
DO $$
BEGIN
    -- A dump that was restored on another server continues here.
    IF EXISTS (SELECT FROM messages.release_object o CROSS JOIN pg_control_system() c WHERE o.kind = 'cluster' AND o.name <> c.system_identifier::text) THEN
        PERFORM messages.take_over();
    END IF;
    DELETE FROM ONLY messages.release_object o WHERE o.kind <> 'internal';   -- of grants.sql
    INSERT INTO messages.release_object (kind, name, definition, mend, server)
    SELECT c.kind, c.name, c.definition, c.mend, current_setting('server_version_num')::integer / 10000 FROM messages.release_catalog() c;
    INSERT INTO messages.release_object (kind, name, definition, server)
    SELECT 'cluster', c.system_identifier, '', current_setting('server_version_num')::integer / 10000 FROM pg_control_system() c;
END $$;
