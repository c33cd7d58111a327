CREATE OR REPLACE FUNCTION messages.fingerprint(result text, details text, failure jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- Leave out what differs between two messages with one cause: quoted texts, UUIDs and other hex, numbers, spaces.
    SELECT left(md5(result || ' ' || coalesce(failure ->> 'error', '') || ' ' || lower(regexp_replace(regexp_replace(regexp_replace(
        left(coalesce(failure ->> 'cause', failure ->> 'message', details, ''), 2000),
        '''[^'']*''|"[^"]*"', '?', 'g'), '[[:<:]][0-9a-fA-F-]*[0-9][0-9a-fA-F-]*[[:>:]]', '#', 'g'), '[[:space:]]+', ' ', 'g'))), 12)
$$;
COMMENT ON FUNCTION messages.fingerprint(text, text, jsonb) IS
    'Twelve characters that are the same for dead messages whose result, error and error message are equal apart from numbers, ids and quoted texts. A cause in failure counts instead of the message.';
