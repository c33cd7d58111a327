CREATE OR REPLACE FUNCTION messages.upkeep_mode() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM messages.upkeep_run u WHERE u.cron_at > clock_timestamp() - interval '3 minutes'
                                -- Anybody with messages_upkeep can say that pg_cron has it, again and again: what counts is the upkeep.
                                AND coalesce(u.finished_at > clock_timestamp() - interval '6 minutes', true))
                 -- A schedule that fails is late, whoever runs it.
                 AND NOT EXISTS (
                    SELECT FROM messages.schedule s
                     WHERE NOT s.paused AND s.last_error IS NULL AND s.checked_until < clock_timestamp() - interval '3 minutes'
                       AND messages.next_cron_tick(s.cron, s.time_zone, greatest(s.checked_until, clock_timestamp() - interval '24 hours'))
                           < clock_timestamp() - interval '3 minutes')
           THEN 'pg_cron' ELSE 'airflow' END
$$;
COMMENT ON FUNCTION messages.upkeep_mode() IS
    'Who does the upkeep: pg_cron if it did, or was given it, within the last three minutes, somebody has done it within the last six, and no schedule is late; else airflow.';
