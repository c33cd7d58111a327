CREATE OR REPLACE FUNCTION messages.record_upkeep_step(step text, subject text, state text DEFAULT NULL, error text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF record_upkeep_step.state IS NULL THEN
        DELETE FROM messages.upkeep_failure f WHERE f.step = record_upkeep_step.step AND f.subject = left(record_upkeep_step.subject, 255);
        RETURN;
    END IF;
    RAISE WARNING 'the upkeep could not do %(%): %', record_upkeep_step.step, left(record_upkeep_step.subject, 255), left(record_upkeep_step.error, 500);
    INSERT INTO messages.upkeep_failure AS f (step, subject, sqlstate, error)
    VALUES (record_upkeep_step.step, left(record_upkeep_step.subject, 255), record_upkeep_step.state, left(record_upkeep_step.error, 500))
    ON CONFLICT (step, subject) DO UPDATE SET sqlstate = excluded.sqlstate, error = excluded.error, failed_at = excluded.failed_at;
END $$;
COMMENT ON FUNCTION messages.record_upkeep_step(text, text, text, text) IS
    'Records that a step of the upkeep failed for a queue or partition, with a warning, or, without a state, that it succeeded.';
