CREATE OR REPLACE FUNCTION messages.raise_other_partitions(run_id text, difference text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'run % has published other partitions: %', quote_literal(run_id), difference
        USING ERRCODE = 'PQ004', HINT = 'Run it again with the rows of the first time in the partitions of the first time, for example from files that were written before. What is published stays.';
END $$;
COMMENT ON FUNCTION messages.raise_other_partitions(text, text) IS
    'Raises PQ004: a run that publishes partitions one by one was run again with other rows.';
