CREATE OR REPLACE FUNCTION messages.check_no_dedup(keys text, dedup_window interval, on_conflict text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF dedup_window IS NOT NULL OR on_conflict <> 'skip' THEN
        RAISE EXCEPTION '% given, and % NULL', CASE WHEN dedup_window IS NOT NULL THEN 'dedup_window is' ELSE 'on_conflict is' END,
                        CASE keys WHEN 'dedup_keys' THEN 'dedup_keys are' ELSE keys || ' is' END
            USING ERRCODE = 'PQ004', HINT = 'It says what becomes of a repeated key: give both, or neither.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_no_dedup(text, interval, text) IS
    'Raises PQ004 for what would have no effect without dedup keys.';
