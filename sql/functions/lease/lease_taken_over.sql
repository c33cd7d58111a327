CREATE OR REPLACE FUNCTION messages.lease_taken_over() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF OLD.lock_expires_at < NEW.lock_expires_at AND OLD.lock_expires_at <= clock_timestamp() THEN
        NEW.lock_token := NULL;
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION messages.lease_taken_over() IS
    'Trigger. When plain SQL locks a message whose lease expired, the token of the old lease becomes worthless.';
