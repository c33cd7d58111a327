CREATE OR REPLACE FUNCTION messages.lock_all_or_none(VARIADIC tables regclass[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    -- Verbs lock tables in different orders: lease locks the queue before the messages, publish the messages before the queue.
    -- A session that waited for one table while it held others would deadlock, and everybody would wait behind it.
    FOR attempt IN 1..200 LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            EXECUTE 'LOCK TABLE ' || array_to_string(tables, ', ');
            PERFORM set_config('lock_timeout', before, true);
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 200 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(random() / 10);
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lock_all_or_none(regclass[]) IS
    'For migrations: locks tables in ACCESS EXCLUSIVE mode until the commit, all of them or none. Gives way after a tenth of a second and tries again, up to 200 times. 55P03: one of them was in use each time.';
