CREATE OR REPLACE FUNCTION messages.raise_unknown_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'queue % does not exist', coalesce(quote_literal(left(queue_name, 100)), 'NULL')
        USING ERRCODE = 'PQ001',
              HINT = format('Create it: SELECT messages.create_queue(%s)', coalesce(quote_literal(left(queue_name, 100)), '''name'''));
END $$;
COMMENT ON FUNCTION messages.raise_unknown_queue(text) IS 'Raises PQ001 with the queue and the fix.';
