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
    DELETE FROM messages.pipeline_run r WHERE r.started_at <= clock_timestamp() - interval '90 days';
    DELETE FROM messages.traffic WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM unnest(ARRAY['minute', 'hour']) AS g (grain) JOIN messages.traffic t ON t.grain = g.grain
         WHERE t.bucket_at < date_trunc(g.grain, messages.traffic_kept(g.grain), 'UTC') LIMIT max_rows FOR UPDATE OF t SKIP LOCKED));
    DELETE FROM messages.claim c WHERE c.expires_at <= clock_timestamp() - interval '1 day';
    FOR stage IN
        SELECT s.number FROM messages.publish_stage s WHERE s.expires_at <= clock_timestamp()
         ORDER BY s.expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM messages.remove_stage(stage.number);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.delete_expired_records(integer) IS 'Internal. Deletes what is remembered for a while only: expired dedup keys, entries of the inbox after 30 days, runs of pipelines after 90, claims a day after they ended; drops stages whose job died a day ago.';
