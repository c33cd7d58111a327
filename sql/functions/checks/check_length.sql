CREATE OR REPLACE FUNCTION messages.check_length(name text, value text, at_least integer, at_most integer, required boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR length(value) NOT BETWEEN at_least AND at_most THEN
        RAISE EXCEPTION '% has % characters', name, coalesce(length(value), 0) USING ERRCODE = 'PQ004',
            HINT = format(CASE at_least WHEN 0 THEN 'Give at most %2$s characters.' ELSE 'Give a text of %1$s to %2$s characters.' END, at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_length(text, text, integer, integer, boolean) IS
    'Raises PQ004 for a text that is too short or too long; NULL means not given, unless it is required.';
