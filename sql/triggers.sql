-- The triggers of the two doors. Made once and never replaced: replacing a trigger locks out whoever uses the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_published') THEN
        CREATE TRIGGER message_published AFTER INSERT ON messages.message
            REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_published();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_changed') THEN
        CREATE TRIGGER message_changed AFTER UPDATE ON messages.message
            REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION messages.message_changed();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message_archive'::regclass AND tgname = 'message_archived') THEN
        CREATE TRIGGER message_archived AFTER INSERT ON messages.message_archive
            REFERENCING NEW TABLE AS archived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_archived();
    END IF;
END $$;
