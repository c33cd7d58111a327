CREATE OR REPLACE FUNCTION messages.check_publish(
    priority integer, delay interval, expires_in interval, visible_at timestamptz, headers jsonb
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority is %', coalesce(priority::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a whole number from 0 to 9; higher is leased first, and 4 is the default.';
    END IF;
    PERFORM messages.check_duration('delay', delay, '0', '366 days');
    PERFORM messages.check_duration('expires_in', expires_in, '1 millisecond', '3660 days');
    IF visible_at IS NOT NULL AND delay > '0' THEN
        RAISE EXCEPTION 'both delay and visible_at are given' USING ERRCODE = 'PQ004', HINT = 'Give one of them.';
    END IF;
    IF visible_at > clock_timestamp() + interval '3660 days' THEN
        RAISE EXCEPTION 'visible_at is %', visible_at USING ERRCODE = 'PQ004', HINT = 'Give a time within the next ten years.';
    END IF;
    PERFORM messages.check_headers(headers);
END $$;
COMMENT ON FUNCTION messages.check_publish(integer, interval, interval, timestamptz, jsonb) IS
    'Raises PQ004 for an argument of publish that is out of range, PQ005 for headers that are too large.';
