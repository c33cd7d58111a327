CREATE OR REPLACE FUNCTION messages.json_bytes(document jsonb) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- #> unpacks a value that a table holds compressed. Ten bytes hold a number that as text has 131,072 digits, and text is what a
    -- client gets.
    RETURN greatest(pg_column_size(document #> '{}'), octet_length(document::text));
EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
    RETURN 2147483647;                     -- nobody could ever read it
END $$;
COMMENT ON FUNCTION messages.json_bytes(jsonb) IS
    'How many bytes a jsonb value takes, or its text if that is longer; 2,147,483,647: more than a text can have.';
