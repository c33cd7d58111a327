CREATE OR REPLACE FUNCTION messages.topic_regex(pattern text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern !~ '^([A-Za-z0-9_-]+|[*#])([.]([A-Za-z0-9_-]+|[*#]))*$' OR length(pattern) > 255 THEN
        RAISE EXCEPTION 'topic pattern % is not valid', quote_literal(left(pattern, 100)) USING ERRCODE = 'PQ004',
            HINT = 'Use words, * for any word and # for any number of words, with single dots between them; at most 255 characters.';
    END IF;
    -- Each word is matched with the dot before it, so that # may stand for no word at all.
    RETURN '^' || (
        SELECT string_agg(CASE word WHEN '*' THEN '[.][^.]+' WHEN '#' THEN '([.][^.]+)*' ELSE '[.]' || word END, '' ORDER BY place)
          FROM string_to_table(pattern, '.') WITH ORDINALITY AS words (word, place)) || '$';
END $$;
COMMENT ON FUNCTION messages.topic_regex(text) IS
    'The regular expression of a topic pattern, for a topic with a dot before it. PQ004: bad pattern; NULL means not given.';
