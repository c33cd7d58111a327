CREATE OR REPLACE FUNCTION messages.prepare_cron_role(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    needed CONSTANT regprocedure[] := '{messages.upkeep(boolean),messages.look_at_next(text),messages.purge_cron_history(integer)}';
    login  record;
BEGIN
    SELECT * INTO login FROM pg_roles r WHERE r.rolname = role_name;
    IF NOT FOUND THEN
        EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        IF to_regrole('messages_upkeep') IS NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA messages TO %I', role_name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', array_to_string(needed, ', '), role_name);
        ELSE
            EXECUTE format('GRANT messages_upkeep TO %I', role_name);
        END IF;
    ELSIF NOT login.rolcanlogin THEN
        RAISE EXCEPTION 'role % may not log in, as pg_cron has to', quote_literal(role_name)
            USING ERRCODE = 'PQ004', HINT = 'Name a login that is a member of messages_upkeep.';
    ELSIF NOT (has_schema_privilege(role_name, 'messages', 'USAGE')
               AND (SELECT bool_and(has_function_privilege(role_name, one, 'EXECUTE')) FROM unnest(needed) AS one)) THEN
        RAISE EXCEPTION 'role % may not execute %', quote_literal(role_name), array_to_string(needed, ', ')
            USING ERRCODE = 'PQ004', HINT = format('GRANT messages_upkeep TO %I', role_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.prepare_cron_role(text) IS
    'Makes a login that may do the upkeep, if there is no such role. PQ004: the role exists and may not log in, or may not do the upkeep.';
