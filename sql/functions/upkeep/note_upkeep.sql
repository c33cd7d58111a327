CREATE OR REPLACE FUNCTION messages.note_upkeep(step text, subject text, state text DEFAULT NULL, error text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF note_upkeep.state IS NULL THEN
        DELETE FROM messages.upkeep_failure f WHERE f.step = note_upkeep.step AND f.subject = left(note_upkeep.subject, 255);
        RETURN;
    END IF;
    RAISE WARNING 'the upkeep could not do %(%): %', note_upkeep.step, left(note_upkeep.subject, 255), left(note_upkeep.error, 500);
    INSERT INTO messages.upkeep_failure AS f (step, subject, sqlstate, error)
    VALUES (note_upkeep.step, left(note_upkeep.subject, 255), note_upkeep.state, left(note_upkeep.error, 500))
    ON CONFLICT (step, subject) DO UPDATE SET sqlstate = excluded.sqlstate, error = excluded.error, failed_at = excluded.failed_at;
END $$;
COMMENT ON FUNCTION messages.note_upkeep(text, text, text, text) IS
    'Records that a step of the upkeep failed for a queue or partition, with a warning, or, without a state, that it succeeded.';
