CREATE OR REPLACE FUNCTION messages.check_outcomes(outcomes jsonb, output jsonb, failure jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome record;
BEGIN
    IF jsonb_typeof(outcomes) <> 'object' THEN
        RAISE EXCEPTION 'outcomes are of type %', jsonb_typeof(outcomes)
            USING ERRCODE = 'PQ004', HINT = 'Give an object: {"id": {"result", "details", "output", "failure"}}.';
    END IF;
    FOR outcome IN
        SELECT o.value ->> 'result' AS result, o.value -> 'output' AS output, o.value -> 'failure' AS failure FROM jsonb_each(outcomes) o
        UNION ALL SELECT NULL, check_outcomes.output, check_outcomes.failure
    LOOP
        IF outcome.result IS NOT NULL THEN    -- not as a WHERE: a plan for these values calls what is IMMUTABLE before it
            PERFORM messages.check_result(outcome.result);
        END IF;
        IF octet_length(outcome.output::text) > 65536 OR octet_length(outcome.failure::text) > 65536 THEN
            RAISE EXCEPTION 'an output or failure has % bytes', greatest(octet_length(outcome.output::text), octet_length(outcome.failure::text))
                USING ERRCODE = 'PQ004', HINT = 'Give at most 65536 bytes; store large results elsewhere and say where.';
        END IF;
        IF jsonb_typeof(outcome.failure) <> 'object' THEN
            RAISE EXCEPTION 'a failure is of type %', jsonb_typeof(outcome.failure)
                USING ERRCODE = 'PQ004', HINT = 'Give an object with error, message and traceback.';
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.check_outcomes(jsonb, jsonb, jsonb) IS 'Raises PQ004 for an outcome that the archive cannot keep.';
