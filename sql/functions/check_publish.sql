CREATE OR REPLACE FUNCTION messages.check_publish(priority integer, delay interval, expires_in interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority is %', coalesce(priority::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a whole number from -100 to 100; higher is leased first.';
    END IF;
    IF delay <> '0' THEN
        PERFORM messages.check_duration('delay', delay, '0', '366 days');
    END IF;
    IF expires_in IS NOT NULL THEN
        PERFORM messages.check_duration('expires_in', expires_in, '1 millisecond', '3660 days');
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_publish(integer, interval, interval) IS
    'Internal. Raises PQ004 for an argument of publish that is out of range.';
