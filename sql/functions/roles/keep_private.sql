CREATE OR REPLACE FUNCTION messages.keep_private(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
          FROM pg_class c CROSS JOIN aclexplode(c.relacl) a WHERE c.oid = keep_private.relation AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', keep_private.relation, grantee);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.keep_private(regclass) IS
    'Takes back what default privileges gave to others when this table or sequence was made.';
