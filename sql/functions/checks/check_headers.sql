CREATE OR REPLACE FUNCTION messages.check_headers(headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes integer := messages.json_bytes(headers);
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are of type %', jsonb_typeof(headers) USING ERRCODE = 'PQ004', HINT = 'Give a JSON object.';
    END IF;
    IF bytes > 65536 THEN
        RAISE EXCEPTION 'headers of % bytes are too large: the most is 65536', bytes
            USING ERRCODE = 'PQ005', HINT = 'Move into the body what does not describe the message.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_headers(jsonb) IS
    'Raises PQ004 for headers that are not an object, PQ005 for more than 64 kB, as a jsonb value or as its text; NULL means not given.';
