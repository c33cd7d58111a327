CREATE OR REPLACE FUNCTION messages.duration_quantile(durations bigint[], fraction double precision, longest interval) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(longest, 2 ^ (min(reached.class) / 4.0::float) * interval '1 millisecond')
      FROM (SELECT durations[n][1] AS class, sum(durations[n][2]) OVER (ORDER BY durations[n][1]) AS messages,
                   sum(durations[n][2]) OVER () AS total
              FROM generate_subscripts(durations, 1) AS n) reached
     WHERE reached.messages >= fraction * reached.total
$$;
COMMENT ON FUNCTION messages.duration_quantile(bigint[], double precision, interval) IS
    'The duration that this fraction of the messages did not exceed, rounded up by at most 19 percent to the end of its class.';
