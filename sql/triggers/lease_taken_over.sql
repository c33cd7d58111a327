-- Made once and never replaced: replacing a trigger locks out consumers.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'lease_taken_over') THEN
        CREATE TRIGGER lease_taken_over BEFORE UPDATE OF lock_expires_at ON messages.message
            FOR EACH ROW WHEN (OLD.lock_token IS NOT DISTINCT FROM NEW.lock_token)   -- plain SQL, or an extension
            EXECUTE FUNCTION messages.lease_taken_over();
    END IF;
END $$;
