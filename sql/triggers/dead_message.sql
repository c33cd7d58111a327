-- Made once and never replaced: replacing a trigger locks out consumers.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message_archive'::regclass AND tgname = 'dead_message') THEN
        CREATE TRIGGER dead_message AFTER INSERT ON messages.message_archive
            FOR EACH ROW WHEN (NEW.result <> 'success') EXECUTE FUNCTION messages.dead_message();
    END IF;
END $$;
