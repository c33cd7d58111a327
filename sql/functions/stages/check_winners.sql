CREATE OR REPLACE FUNCTION messages.check_winners(winners jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF jsonb_typeof(winners) IS DISTINCT FROM 'array'
       OR EXISTS (
           SELECT FROM jsonb_array_elements(winners) AS w
            WHERE concat(w -> 'partition', w -> 'attempt', w -> 'rows') LIKE '%.%' OR NOT jsonb_path_exists(w, 'strict $ ? (
               @.partition >= 0 && @.partition <= 2147483647 && @.partition.floor() == @.partition
               && @.attempt >= -9223372036854775808 && @.attempt <= 9223372036854775807 && @.attempt.floor() == @.attempt
               && @.rows >= 0 && @.rows <= 10000000000 && @.rows.floor() == @.rows)'))
       OR EXISTS (SELECT FROM jsonb_array_elements(winners) AS w GROUP BY w -> 'attempt' HAVING count(*) > 1) THEN
        RAISE EXCEPTION 'winners are not what was staged'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array of {partition, attempt, rows}, whole numbers without a decimal point, with each attempt once.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_winners(jsonb) IS 'Raises PQ004 for what cannot be the winners of publish_staged.';
