CREATE OR REPLACE FUNCTION messages.error_pattern(details text, failure jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- COLLATE, because a Turkish database has another small letter for I.
    -- Leave out what differs between two messages with one cause: quoted texts, UUIDs and other hex, numbers, spaces.
    SELECT lower(regexp_replace(regexp_replace(regexp_replace(
        left(coalesce(failure ->> 'cause', failure ->> 'message', details, ''), 2000) COLLATE "C",
        '''[^'']*''|"[^"]*"', '?', 'g'), '[[:<:]][0-9a-fA-F-]*[0-9][0-9a-fA-F-]*[[:>:]]', '#', 'g'), '[[:space:]]+', ' ', 'g'))
$$;
COMMENT ON FUNCTION messages.error_pattern(text, jsonb) IS
    'What is the same in the texts of errors with one cause, with # for numbers and ids and ? for quotations. A cause in failure counts instead of the message.';
