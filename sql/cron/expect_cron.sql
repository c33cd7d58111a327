CREATE OR REPLACE FUNCTION messages.expect_cron(run_as text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '30s'
AS $$
BEGIN
    INSERT INTO messages.upkeep_run AS u (cron_at, cron_role) VALUES (CASE WHEN run_as IS NOT NULL THEN clock_timestamp() END, run_as)
    ON CONFLICT (only_row) DO UPDATE SET cron_at = excluded.cron_at, cron_role = excluded.cron_role;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('the upkeep');
END $$;
COMMENT ON FUNCTION messages.expect_cron(text) IS
    'Records that pg_cron was given the upkeep, as this login, and so has three minutes to begin; NULL records that pg_cron no longer has it. PQ016: an upkeep ran for half a minute.';
