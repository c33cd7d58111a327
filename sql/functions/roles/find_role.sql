CREATE OR REPLACE FUNCTION messages.find_role(role_name text) RETURNS regrole
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found regrole;
BEGIN
    SELECT r.oid INTO found FROM pg_roles r WHERE r.rolname = role_name;
    IF found IS NULL THEN
        RAISE EXCEPTION 'role % does not exist', coalesce(quote_literal(left(role_name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Create it: CREATE ROLE %I LOGIN', coalesce(left(role_name, 63), 'name'));
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION messages.find_role(text) IS 'The role with this name. PQ004: there is none.';
