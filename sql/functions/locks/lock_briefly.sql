CREATE OR REPLACE FUNCTION messages.lock_briefly(relation regclass, mode text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    -- Everybody queues up behind a session that waits for such a lock: give way to them between the attempts.
    FOR attempt IN 1..20 LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN %s MODE', relation, mode);
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(random() * attempt / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(relation::text);
END $$;
COMMENT ON FUNCTION messages.lock_briefly(regclass, text) IS
    'Locks a table and its partitions until the commit. Waits a tenth of a second, gives way, and tries again, for about seven seconds. PQ016: it was in use each time.';
