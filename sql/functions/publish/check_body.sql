CREATE OR REPLACE FUNCTION messages.check_body(queue_name text, body jsonb, max_body_bytes integer) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes integer := messages.json_bytes(body);
BEGIN
    IF bytes > max_body_bytes THEN
        RAISE EXCEPTION 'a body of % bytes is too large for queue %: its max_body_bytes is %', bytes, quote_literal(queue_name), max_body_bytes
            USING ERRCODE = 'PQ005',
                  HINT = 'Store it in a file and publish its URL (docs/how-to/publish.md), or raise max_body_bytes with messages.alter_queue.';
    END IF;
    RETURN body;
END $$;
COMMENT ON FUNCTION messages.check_body(text, jsonb, integer) IS
    'Returns a body; PQ005, with the size, the limit and the fix, if it or its text is larger than the queue allows.';
