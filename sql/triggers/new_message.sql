-- Made once and never replaced: replacing a trigger locks out publishers.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'new_message') THEN
        CREATE TRIGGER new_message AFTER INSERT ON messages.message
            REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT
            -- messages.publish() did it: docs/decisions/0016-what-publish-shows-to-the-trigger.md
            WHEN (CASE WHEN has_sequence_privilege('messages.admission'::regclass, 'SELECT')
                       THEN current_setting('messages.admitted', true) IS DISTINCT FROM pg_sequence_last_value('messages.admission')::text
                       ELSE true END)
            EXECUTE FUNCTION messages.new_message();
    END IF;
END $$;
