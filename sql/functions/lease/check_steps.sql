CREATE OR REPLACE FUNCTION messages.check_steps(id bigint, steps jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := steps -> -1 ->> 'name';
BEGIN
    IF jsonb_array_length(steps) > 1 AND steps - -1 @> jsonb_build_array(jsonb_build_object('name', name)) THEN
        RAISE EXCEPTION 'step % of message % is kept already', quote_literal(name), id
            USING ERRCODE = 'PQ004', HINT = 'Give each step of a message a name of its own.';
    ELSIF octet_length((steps -> -1 -> 'result')::text) > 65536 THEN
        RAISE EXCEPTION 'the result of step % has % bytes', quote_literal(name), octet_length((steps -> -1 -> 'result')::text)
            USING ERRCODE = 'PQ004', HINT = 'Give at most 65536 bytes; store large results elsewhere and say where.';
    ELSIF jsonb_array_length(steps) > 1000 OR messages.json_bytes(steps) > 1048576 THEN
        RAISE EXCEPTION 'message % has % steps of % bytes', id, jsonb_array_length(steps), messages.json_bytes(steps)
            USING ERRCODE = 'PQ004', HINT = 'Keep at most 1000 steps and 1 MB of a message; publish messages for more work.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_steps(bigint, jsonb) IS
    'Raises PQ004 if the last of the steps of a message cannot be kept: its name is taken, its result is larger than 64 kB, or the steps are more than 1000 or larger than 1 MB together.';
