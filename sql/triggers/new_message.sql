-- Made once and never replaced: replacing a trigger locks out publishers.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'new_message') THEN
        CREATE TRIGGER new_message AFTER INSERT ON messages.message
            REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT
            WHEN (current_setting('messages.admitted', true) IS DISTINCT FROM 'yes')   -- messages.publish() did it
            EXECUTE FUNCTION messages.new_message();
    END IF;
END $$;
