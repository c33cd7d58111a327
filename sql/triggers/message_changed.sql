-- Made once and never replaced: replacing a trigger locks out whoever uses the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_changed') THEN
        CREATE TRIGGER message_changed AFTER UPDATE ON messages.message
            REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION messages.message_changed();
    END IF;
END $$;
