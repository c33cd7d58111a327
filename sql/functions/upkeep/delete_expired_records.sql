CREATE OR REPLACE FUNCTION messages.delete_expired_records(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept  record;
    stage record;
BEGIN
    FOR kept IN
        SELECT * FROM (VALUES
            ('dedup', 'expires_at', interval '0'), ('inbox', 'handled_at', '30 days'), ('dispatch', 'ended_at', '30 days'),
            ('failed_attempt', 'failed_at', '30 days'), ('pipeline_run', 'started_at', '90 days')) AS kept (relation, since, period)
    LOOP
        EXECUTE format('DELETE FROM messages.%1$I WHERE ctid = ANY (ARRAY(
                            SELECT o.ctid FROM messages.%1$I o WHERE o.%2$I <= clock_timestamp() - $1
                             ORDER BY o.%2$I LIMIT $2 FOR UPDATE SKIP LOCKED))', kept.relation, kept.since) USING kept.period, max_rows;
    END LOOP;
    FOR stage IN
        SELECT s.number FROM messages.publish_stage s WHERE s.expires_at <= clock_timestamp()
         ORDER BY s.expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            PERFORM messages.drop_or_empty_stage(stage.number);
            PERFORM messages.record_upkeep_step('drop_or_empty_stage', stage.number::text);
        EXCEPTION WHEN OTHERS THEN
            PERFORM messages.record_upkeep_step('drop_or_empty_stage', stage.number::text, SQLSTATE, SQLERRM);
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.delete_expired_records(integer) IS 'Deletes what is kept for a limited time: expired dedup keys, entries of the inbox, ended dispatches and failed attempts after 30 days, runs of pipelines after 90; drops stages whose job died a day ago.';
