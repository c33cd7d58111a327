CREATE OR REPLACE FUNCTION messages.check_topic(topic text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF topic !~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' OR length(topic) > 255 THEN
        RAISE EXCEPTION 'topic % is not valid', quote_literal(left(topic, 100))
            USING ERRCODE = 'PQ004', HINT = 'Use words of letters, digits, - and _ with single dots between them; at most 255 characters.';
    END IF;
    RETURN topic;
END $$;
COMMENT ON FUNCTION messages.check_topic(text) IS 'Returns a topic, or raises PQ004 if it cannot be one; NULL means not given.';
