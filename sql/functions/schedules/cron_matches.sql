CREATE OR REPLACE FUNCTION messages.cron_matches(cron text, local_minute timestamp) RETURNS boolean
LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM messages.cron_ticks(cron, 'UTC', minute - interval '1 minute', minute))
      FROM (SELECT date_trunc('minute', local_minute) AT TIME ZONE 'UTC' AS minute) asked
$$;
COMMENT ON FUNCTION messages.cron_matches(text, timestamp) IS
    'Whether a cron expression has a tick in this minute of the wall clock. PQ004: not a cron expression.';
