CREATE OR REPLACE FUNCTION messages.fair_keys(fair_by text, number integer, headers jsonb, topics text[], group_keys text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(SELECT left(coalesce(headers ->> 'fair_key', CASE fair_by WHEN 'group' THEN group_keys[place] WHEN 'topic' THEN split_part(topics[place], '.', 1) END, ''), 255)
                   FROM generate_series(1, number) AS place ORDER BY place)
$$;
COMMENT ON FUNCTION messages.fair_keys(text, integer, jsonb, text[], text[]) IS
    'The keys whose turns so many messages take: their header fair_key, or what fair_by of their queue names; an empty text for one that has neither.';
