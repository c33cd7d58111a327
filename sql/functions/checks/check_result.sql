CREATE OR REPLACE FUNCTION messages.check_result(result text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (result = ANY (ARRAY['success', 'failed', 'rejected', 'lock_expired', 'expired', 'cancelled'])) IS NOT TRUE THEN
        RAISE EXCEPTION 'result is %', coalesce(quote_literal(left(result, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give success, failed, rejected, lock_expired, expired or cancelled.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_result(text) IS 'Raises PQ004 for a result that no message can have.';
