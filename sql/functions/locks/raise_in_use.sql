CREATE OR REPLACE FUNCTION messages.raise_in_use(what text, state text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF state = '40P01' THEN                -- in place of an error that names neither the cause nor the fix
        RAISE EXCEPTION '% is held by a transaction that waits for this one', what USING ERRCODE = 'PQ016', HINT =
            'Repeat the transaction. It does not happen where each transaction has one such call, or all of them make theirs in one order.';
    END IF;
    RAISE EXCEPTION '% is in use', what USING ERRCODE = 'PQ016',
        HINT = 'Nothing was changed. Try again when no long transaction uses it: SELECT pid, application_name, xact_start FROM pg_stat_activity WHERE xact_start < now() - interval ''1 s'' ORDER BY 3; SELECT * FROM pg_prepared_xacts';
END $$;
COMMENT ON FUNCTION messages.raise_in_use(text, text) IS
    'Raises PQ016 for what transactions of others held for too long; with the SQLSTATE of a deadlock, for what is held by one that waits for this one.';
