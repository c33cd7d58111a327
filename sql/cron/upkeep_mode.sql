CREATE OR REPLACE FUNCTION messages.upkeep_mode() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM messages.upkeep_run u WHERE u.cron_at BETWEEN clock_timestamp() - interval '3 minutes' AND clock_timestamp()
                                -- Anybody with messages_upkeep can say that pg_cron has it, again and again: what counts is the upkeep.
                                AND coalesce(u.finished_at > clock_timestamp() - interval '6 minutes', true))
           THEN 'pg_cron' ELSE 'airflow' END
$$;
COMMENT ON FUNCTION messages.upkeep_mode() IS
    'Who does the upkeep: pg_cron if it did, or was given it, within the last three minutes and somebody has done it within the last six; else airflow.';
