CREATE OR REPLACE FUNCTION messages.parse_cron_field(
    cron    text,
    field   text,
    value   text,
    lowest  integer,
    highest integer,
    names   text[] DEFAULT '{}'
) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item    text;
    parts   text[];
    ends    integer[];
    step    integer;
    numbers integer[] := '{}';
BEGIN
    FOREACH item IN ARRAY string_to_array(upper(value), ',') LOOP
        -- A field has a star, or from and to, and then a step, which a single number cannot have: cron programs read 5/15 differently.
        parts := regexp_match(item, '^(?:([*])|([0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,2}))?$');
        SELECT array_agg(CASE WHEN word ~ '^[0-9]' THEN word::integer ELSE array_position(names, word) + lowest - 1 END ORDER BY place)
          INTO ends FROM unnest(parts[2:3]) WITH ORDINALITY AS words (word, place);
        IF parts[1] = '*' THEN
            ends := ARRAY[lowest, highest];
        ELSIF parts[3] IS NULL THEN
            ends[2] := ends[1];
        ELSIF parts[3] = 'SUN' THEN
            ends[2] := highest;
        END IF;
        step := coalesce(parts[4]::integer, 1);
        IF parts IS NULL OR ends[1] IS NULL OR ends[2] IS NULL OR ends[1] < lowest OR ends[2] > highest OR ends[1] > ends[2]
            OR step NOT BETWEEN 1 AND highest - lowest + 1 OR parts[4] IS NOT NULL AND parts[1] IS NULL AND parts[3] IS NULL
        THEN
            RAISE EXCEPTION 'cron % has % %', quote_literal(left(cron, 100)), field, quote_literal(left(value, 100))
                USING ERRCODE = 'PQ004',
                      HINT = format('Give *, or numbers from %s to %s%s; lists 1,2; ranges 1-5; steps */2 or 1-5/2.', lowest, highest,
                                    CASE WHEN names <> '{}' THEN format(' or names %s to %s', names[1], names[cardinality(names)]) END);
        END IF;
        numbers := numbers || ARRAY(SELECT number FROM generate_series(ends[1], ends[2], step) AS number);
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT number FROM unnest(numbers) AS number ORDER BY number);
END $$;
COMMENT ON FUNCTION messages.parse_cron_field(text, text, text, integer, integer, text[]) IS
    'The numbers that one field of a cron expression means; PQ004 names the field.';
