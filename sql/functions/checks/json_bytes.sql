CREATE OR REPLACE FUNCTION messages.json_bytes(document jsonb) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- #> unpacks a value that a table holds compressed.
    bytes integer := pg_column_size(document #> '{}');
BEGIN
    -- Ten bytes hold a number that as text has 131,072 digits, and text is what a client gets. Of a small value that stays harmless.
    IF bytes > 1000 THEN
        bytes := greatest(bytes, octet_length(document::text));
    END IF;
    RETURN bytes;
EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
    RETURN 2147483647;                     -- nobody could ever read it
END $$;
COMMENT ON FUNCTION messages.json_bytes(jsonb) IS
    'How many bytes a jsonb value takes, or its text if that is longer, which is looked at from 1,000 bytes on; 2,147,483,647: more than a text can have.';
