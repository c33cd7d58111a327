CREATE OR REPLACE FUNCTION messages.forget(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
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
END $$;
COMMENT ON FUNCTION messages.forget(integer) IS 'Internal. Deletes dedup keys that expired and entries of the inbox that are 30 days old, runs of pipelines after 90, traffic by the minute after 14 and by the hour after 400.';
