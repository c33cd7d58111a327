CREATE OR REPLACE FUNCTION messages.delete_expired_records(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stage record;
BEGIN
    DELETE FROM messages.dedup WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM messages.dedup d WHERE d.expires_at <= clock_timestamp()
         ORDER BY d.expires_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.inbox WHERE ctid = ANY (ARRAY(
        SELECT i.ctid FROM messages.inbox i WHERE i.handled_at <= clock_timestamp() - interval '30 days'
         ORDER BY i.handled_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.dispatch WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM messages.dispatch d WHERE d.ended_at <= clock_timestamp() - interval '30 days'
         ORDER BY d.ended_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.batch WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM messages.batch b WHERE b.ended_at <= clock_timestamp() - interval '30 days'
         ORDER BY b.ended_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.failed_attempt WHERE ctid = ANY (ARRAY(
        SELECT f.ctid FROM messages.failed_attempt f WHERE f.failed_at <= clock_timestamp() - interval '30 days'
         ORDER BY f.failed_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.pipeline_run WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM messages.pipeline_run r WHERE r.started_at <= clock_timestamp() - interval '90 days' FOR UPDATE SKIP LOCKED));
    DELETE FROM messages.named_lease WHERE ctid = ANY (ARRAY(
        SELECT n.ctid FROM messages.named_lease n WHERE n.expires_at <= clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED));
    FOR stage IN
        SELECT s.number FROM messages.publish_stage s WHERE s.expires_at <= clock_timestamp()
         ORDER BY s.expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            PERFORM messages.drop_or_empty_stage(stage.number);
            PERFORM messages.note_upkeep('drop_or_empty_stage', stage.number::text);
        EXCEPTION WHEN OTHERS THEN
            PERFORM messages.note_upkeep('drop_or_empty_stage', stage.number::text, SQLSTATE, SQLERRM);
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.delete_expired_records(integer) IS 'Deletes what is kept for a limited time: expired dedup keys, entries of the inbox, ended dispatches, ended batches and failed attempts after 30 days, runs of pipelines after 90, named leases a day after they end; drops stages whose job died a day ago.';
