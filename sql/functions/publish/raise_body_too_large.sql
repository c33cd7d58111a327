CREATE OR REPLACE FUNCTION messages.raise_body_too_large(queue_name text, bytes integer, max_body_bytes integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'a body of % bytes is too large for queue %: its max_body_bytes is %', bytes, quote_literal(queue_name), max_body_bytes
        USING ERRCODE = 'PQ005',
              HINT = 'Store large data elsewhere and publish where it is, or raise max_body_bytes with messages.alter_queue.';
END $$;
COMMENT ON FUNCTION messages.raise_body_too_large(text, integer, integer) IS 'Raises PQ005 with the size, the limit and the cure.';
