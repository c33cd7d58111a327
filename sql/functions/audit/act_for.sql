CREATE OR REPLACE FUNCTION messages.act_for(acting_user text, request uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
BEGIN
    PERFORM messages.check_length('acting_user', act_for.acting_user, 1, 250, required => true);
    PERFORM set_config('messages.acting_user', act_for.acting_user, true);
    IF act_for.request IS NULL THEN
        RETURN true;
    END IF;
    -- Of two at once the second waits here for the commit of the first.
    INSERT INTO messages.inbox (consumer, message_id) VALUES ('request ' || act_for.request, 0) ON CONFLICT DO NOTHING;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('request %s', act_for.request), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.act_for(text, uuid) IS
    'Names the user for whom the rest of this transaction acts: the audit records that name next to the login. It is as trustworthy as the caller. Returns false if a transaction with this request was committed before, in the last 30 days: then there is nothing to do. PQ004: no name; PQ016: the same request is under way for more than three seconds.';
