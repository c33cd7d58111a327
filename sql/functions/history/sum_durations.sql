CREATE OR REPLACE FUNCTION messages.sum_durations(durations bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(ARRAY[s.class, s.messages] ORDER BY s.class)
      FROM (SELECT durations[n][1] AS class, sum(durations[n][2])::bigint AS messages
              FROM generate_subscripts(durations, 1) AS n GROUP BY 1) s
$$;
COMMENT ON FUNCTION messages.sum_durations(bigint[]) IS
    'Adds up pairs of a class of durations and a number of messages, so that each class is there once; NULL for none.';
