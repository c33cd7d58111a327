CREATE OR REPLACE FUNCTION messages.add_durations(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN one IS NULL THEN other WHEN other IS NULL THEN one ELSE (
        SELECT array_agg(ARRAY[s.class, s.messages] ORDER BY s.class) FROM (
            SELECT pair.class, sum(pair.messages)::bigint AS messages FROM (
                SELECT one[n][1], one[n][2] FROM generate_subscripts(one, 1) AS n
                UNION ALL SELECT other[n][1], other[n][2] FROM generate_subscripts(other, 1) AS n) pair (class, messages)
             GROUP BY pair.class) s) END
$$;
COMMENT ON FUNCTION messages.add_durations(bigint[], bigint[]) IS 'The numbers of two lists of classes of durations together.';
