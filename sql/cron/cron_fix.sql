CREATE OR REPLACE FUNCTION messages.cron_fix() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN r.rolsuper THEN 'SELECT messages.install_cron(run_as => ''messages_cron'')' ELSE 'SELECT messages.install_cron()' END
      FROM pg_roles r WHERE r.rolname = session_user
$$;
COMMENT ON FUNCTION messages.cron_fix() IS 'How this login calls install_cron().';
