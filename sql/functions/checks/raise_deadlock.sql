CREATE OR REPLACE FUNCTION messages.raise_deadlock(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% is held by a transaction that waits for this one', what USING ERRCODE = 'PQ016',
        HINT = 'Repeat the transaction. It does not happen where each transaction has one such call, or all of them make theirs in one order.';
END $$;
COMMENT ON FUNCTION messages.raise_deadlock(text) IS 'Raises PQ016 where two transactions wait for each other, in place of an error that names neither the cause nor the fix.';
