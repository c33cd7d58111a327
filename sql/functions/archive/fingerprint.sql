CREATE OR REPLACE FUNCTION messages.fingerprint(result text, details text, failure jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT left(md5(result || ' ' || coalesce(failure ->> 'error', '') || ' ' || messages.error_pattern(details, failure)), 12)
$$;
COMMENT ON FUNCTION messages.fingerprint(text, text, jsonb) IS
    'Twelve characters that are the same for dead messages whose result, error and error message are equal apart from numbers, ids and quoted texts. A cause in failure counts instead of the message.';
