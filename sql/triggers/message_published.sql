-- Made once and never replaced: replacing a trigger locks out whoever uses the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_published') THEN
        CREATE TRIGGER message_published AFTER INSERT ON messages.message
            REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_published();
    END IF;
END $$;
