CREATE OR REPLACE FUNCTION messages.check_result(result text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_choice('result', result, '{success,failed,rejected,lock_expired,expired,cancelled}', required => true);
END $$;
COMMENT ON FUNCTION messages.check_result(text) IS 'Raises PQ004 for a result that no message can have.';
