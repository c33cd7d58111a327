CREATE OR REPLACE FUNCTION messages.prepare_cron_role(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login record;
BEGIN
    SELECT * INTO login FROM pg_roles r WHERE r.rolname = role_name;
    IF NOT FOUND THEN
        EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        IF to_regrole('messages_upkeep') IS NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA messages TO %I', role_name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION messages.upkeep, messages.look_at_next, messages.run_schedules, messages.purge_cron_history TO %I', role_name);
        ELSE
            EXECUTE format('GRANT messages_upkeep TO %I', role_name);
        END IF;
    ELSIF NOT login.rolcanlogin THEN
        RAISE EXCEPTION 'role % may not log in, as pg_cron has to', quote_literal(role_name)
            USING ERRCODE = 'PQ004', HINT = 'Name a login that is a member of messages_upkeep.';
    ELSIF NOT (has_schema_privilege(role_name, 'messages', 'USAGE') AND has_function_privilege(role_name, 'messages.upkeep()', 'EXECUTE')
               AND has_function_privilege(role_name, 'messages.look_at_next(text)', 'EXECUTE')
               AND has_function_privilege(role_name, 'messages.run_schedules()', 'EXECUTE')
               AND has_function_privilege(role_name, 'messages.purge_cron_history(integer)', 'EXECUTE')) THEN
        RAISE EXCEPTION 'role % may not execute messages.upkeep(), messages.look_at_next(), messages.run_schedules() and messages.purge_cron_history()', quote_literal(role_name)
            USING ERRCODE = 'PQ004', HINT = format('GRANT messages_upkeep TO %I', role_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.prepare_cron_role(text) IS
    'Makes a login that may do the upkeep, if there is no such role. PQ004: the role exists and may not log in, or may not do the upkeep.';
