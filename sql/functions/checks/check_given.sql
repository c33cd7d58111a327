CREATE OR REPLACE FUNCTION messages.check_given(queue_name text, message jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF queue_name IS NULL THEN
        PERFORM messages.raise_unknown_queue(NULL);
    ELSIF message IS NULL THEN
        RAISE EXCEPTION 'message is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_given(text, jsonb) IS 'Raises PQ001 or PQ004 if a queue or a body is NULL.';
