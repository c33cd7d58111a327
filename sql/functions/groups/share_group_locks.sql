CREATE OR REPLACE FUNCTION messages.share_group_locks(locks bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
DECLARE
    busy    bigint[] := '{}';
    patient boolean  := true;
BEGIN
    -- Most transactions end within milliseconds. Where one does not, wait once and not once for each lock.
    FOR place IN 1..cardinality(locks) LOOP
        CONTINUE WHEN pg_try_advisory_xact_lock_shared(locks[place]);
        BEGIN
            IF patient THEN
                PERFORM pg_advisory_xact_lock_shared(locks[place]);
                CONTINUE;
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            patient := false;
        END;
        busy := busy || locks[place];
    END LOOP;
    RETURN busy;
END $$;
COMMENT ON FUNCTION messages.share_group_locks(bigint[]) IS
    'Takes locks of groups, shared with other publishers. Returns those that it did not get, because a transaction that finished the last message of such a group holds them. Waits for some milliseconds at most.';
