CREATE OR REPLACE FUNCTION messages.check_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'the isolation level of the transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'PQ004',
                  HINT = 'Nothing was changed. Call it under BEGIN ISOLATION LEVEL READ COMMITTED, so that it sees what was committed while it waited for its lock.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_read_committed() IS
    'Raises PQ004 in a transaction that does not see what was committed after its first statement.';
