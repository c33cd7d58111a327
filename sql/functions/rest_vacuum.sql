CREATE OR REPLACE FUNCTION messages.rest_vacuum(held_for interval DEFAULT '1 minute', dead_rows bigint DEFAULT 200000) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    resting boolean := (SELECT coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false)
                          FROM pg_class c WHERE c.oid = 'messages.message'::regclass);
    futile  boolean;
BEGIN
    -- While a session holds an old snapshot, autovacuum rereads all dead rows every minute and may remove none.
    futile := EXISTS (
        SELECT FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
           AND a.backend_type = 'client backend' AND a.xact_start < clock_timestamp() - held_for)
        AND (resting OR pg_stat_get_dead_tuples('messages.message'::regclass) > dead_rows);
    IF futile AND NOT resting THEN
        ALTER TABLE messages.message SET (autovacuum_enabled = false);
    ELSIF resting AND NOT futile THEN
        ALTER TABLE messages.message RESET (autovacuum_enabled);
    END IF;
    RETURN futile;
EXCEPTION WHEN lock_not_available THEN
    RETURN resting;
END $$;
COMMENT ON FUNCTION messages.rest_vacuum(interval, bigint) IS
    'Internal. Stops autovacuum of the messages while a session holds a snapshot for so long that it could remove nothing, and starts it again afterwards; true while it rests.';
