CREATE OR REPLACE FUNCTION messages.cron_matches(cron text, local_minute timestamp) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    minute timestamptz := date_trunc('minute', local_minute) AT TIME ZONE 'UTC';
BEGIN
    IF minute IS NULL OR minute NOT BETWEEN '0001-01-02' AND '9999-12-31' THEN
        RAISE EXCEPTION 'local_minute is %', coalesce(local_minute::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a time of the years 1 to 9999.';
    END IF;
    RETURN EXISTS (SELECT FROM messages.cron_ticks(cron, 'UTC', minute - interval '1 minute', minute));
END $$;
COMMENT ON FUNCTION messages.cron_matches(text, timestamp) IS
    'Whether a cron expression has a tick in this minute of the wall clock. PQ004: not a cron expression, or not a time of the years 1 to 9999.';
