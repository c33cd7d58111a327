CREATE OR REPLACE FUNCTION messages.fair_keys(fair_by text, number integer, headers jsonb, topics text[], group_keys text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT left(coalesce(headers ->> 'fair_key',
                             CASE fair_by WHEN 'group' THEN group_keys[nth] WHEN 'topic' THEN split_part(topics[nth], '.', 1) END, ''), 255)
          FROM generate_series(1, number) AS nth ORDER BY nth)
$$;
COMMENT ON FUNCTION messages.fair_keys(text, integer, jsonb, text[], text[]) IS
    'The keys of so many messages of one publish, in whose turns they are leased: the header fair_key, or the group or the first word of the topic, as fair_by says; an empty text for a message that has neither.';
