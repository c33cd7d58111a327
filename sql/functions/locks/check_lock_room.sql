CREATE OR REPLACE FUNCTION messages.check_lock_room(step text, locks bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := messages.max_locks_for(locks);
BEGIN
    IF locks > 1000 AND wanted IS NOT NULL THEN
        RAISE EXCEPTION '% needs about % locks, and max_locks_per_transaction is %', step, locks, current_setting('max_locks_per_transaction')
            USING ERRCODE = 'PQ018', HINT = format('Nothing was changed. Set max_locks_per_transaction = %s, restart the server, and repeat it.', wanted);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_lock_room(text, bigint) IS
    'Raises PQ018, with the number to set, before a step that takes more than a thousand locks, and more than half of what the server has room for.';
