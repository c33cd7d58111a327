-- The last step: what health() compares the schema with.
DO $$
BEGIN
    DELETE FROM messages.release_object;
    INSERT INTO messages.release_object (kind, name, definition, mend, server)
    SELECT c.kind, c.name, c.definition, c.mend, current_setting('server_version_num')::integer / 10000 FROM messages.release_catalog() c;
END $$;
