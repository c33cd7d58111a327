-- Made once and never replaced: replacing a trigger locks out consumers.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message_archive'::regclass AND tgname = 'message_archived') THEN
        CREATE TRIGGER message_archived AFTER INSERT ON messages.message_archive
            FOR EACH ROW WHEN (NEW.result <> 'success' OR NEW.group_key IS NOT NULL OR NEW.headers ? 'awaited') EXECUTE FUNCTION messages.message_archived();
    END IF;
END $$;
