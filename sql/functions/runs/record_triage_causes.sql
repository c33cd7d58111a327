CREATE OR REPLACE FUNCTION messages.record_triage_causes(run_id text, causes jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz;
    recorded integer;
BEGIN
    IF jsonb_typeof(record_triage_causes.causes) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'causes are of type %', coalesce(jsonb_typeof(record_triage_causes.causes), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array of objects.';
    END IF;
    PERFORM messages.check_number('the number of causes', jsonb_array_length(record_triage_causes.causes), 0, 1000);
    PERFORM messages.lock_briefly('messages.triage_run', 'SHARE ROW EXCLUSIVE');
    moment := clock_timestamp();
    BEGIN
        DELETE FROM messages.triage_run t WHERE t.recorded_by = session_user AND t.run_id = record_triage_causes.run_id;
        INSERT INTO messages.triage_run (run_id, recorded_at) VALUES (record_triage_causes.run_id, moment);
        INSERT INTO messages.triage_cause (run_id, recorded_at, cause, queue_name, result, error, pattern, trend, dead, unremedied,
                                         requeued, dismissed, died_again, first_at, last_at, series_from, series_step, series,
                                         fingerprints, sample_ids, sample_references)
        SELECT record_triage_causes.run_id, moment, cause, queue_name, result, left(error, 200), left(pattern, 500), trend, dead,
               unremedied, requeued, dismissed, died_again, first_at, last_at, series_from, series_step, series,
               fingerprints[:1000], sample_ids[:5], ARRAY(SELECT left(r, 200) FROM unnest(sample_references[:5]) AS r)
          FROM jsonb_populate_recordset(NULL::messages.triage_cause, record_triage_causes.causes) AS given;
        GET DIAGNOSTICS recorded = ROW_COUNT;
    EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
        RAISE EXCEPTION 'the causes of the run % cannot be kept: %', coalesce(quote_literal(left(record_triage_causes.run_id, 100)), 'NULL'), SQLERRM
            USING ERRCODE = 'PQ004', HINT = 'Give a name of at most 250 characters, and the causes that a triage found.';
    END;
    DELETE FROM messages.triage_run WHERE recorded_by = session_user AND run_id = ANY (ARRAY(
        SELECT t.run_id FROM messages.triage_run t WHERE t.recorded_by = session_user ORDER BY t.recorded_at DESC, t.run_id OFFSET 30));
    RETURN recorded;
END $$;
COMMENT ON FUNCTION messages.record_triage_causes(text, jsonb) IS
    'Records what a triage found, in place of what the same run of this login recorded before; keeps the last 30 of its runs. Returns the number of causes. PQ004: not an array, or more than 1000; PQ016: somebody else records for more than three seconds.';
