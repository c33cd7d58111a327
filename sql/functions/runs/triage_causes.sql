CREATE OR REPLACE FUNCTION messages.triage_causes(
    queue_name text DEFAULT NULL,
    cause      text DEFAULT NULL,
    run_id     text DEFAULT NULL
) RETURNS SETOF messages.triage_cause
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT shown.*
      FROM messages.triage_cause c
     CROSS JOIN LATERAL jsonb_populate_record(c, CASE
         WHEN (SELECT r.bodies FROM messages.session_reach r)
              OR c.queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN '{}'
         ELSE jsonb_build_object('pattern', coalesce(c.error, '')) END) AS shown
     WHERE (c.recorded_by, c.run_id) = (
               SELECT t.recorded_by, t.run_id FROM messages.triage_run t
                WHERE triage_causes.run_id IS NULL OR t.run_id = triage_causes.run_id
                -- Of two runs with one name, this is the one of this login.
                ORDER BY triage_causes.run_id IS NOT NULL AND t.recorded_by = session_user DESC, t.recorded_at DESC LIMIT 1)
       AND (triage_causes.queue_name IS NULL OR c.queue_name = triage_causes.queue_name COLLATE "default")
       AND (triage_causes.cause IS NULL OR c.cause = triage_causes.cause)
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR c.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY c.unremedied DESC, c.dead DESC, c.cause;
    IF NOT FOUND AND triage_causes.queue_name IS NOT NULL AND triage_causes.cause IS NULL THEN
        PERFORM messages.check_queue(triage_causes.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.triage_causes(text, text, text) IS
    'The causes of death that the last triage found, or the triage with this run_id, those with the most messages without a remedy first; requeue_dead and lease_dead take their fingerprints. pattern is only the class of the error, unless this login may read the bodies. PQ001: unknown queue, of which no cause is recorded.';
