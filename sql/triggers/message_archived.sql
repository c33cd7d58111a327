-- Made once and never replaced: replacing a trigger locks out whoever uses the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message_archive'::regclass AND tgname = 'message_archived') THEN
        CREATE TRIGGER message_archived AFTER INSERT ON messages.message_archive
            REFERENCING NEW TABLE AS archived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_archived();
    END IF;
END $$;
