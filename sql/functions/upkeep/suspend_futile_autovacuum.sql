CREATE OR REPLACE FUNCTION messages.suspend_futile_autovacuum(held_for interval DEFAULT '1 minute', dead_rows bigint DEFAULT 200000) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    busy    record;
    resting boolean := (SELECT coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false)
                          FROM pg_class c WHERE c.oid = 'messages.message'::regclass);
    futile  boolean;
BEGIN
    -- While a session holds an old snapshot, autovacuum rereads all dead rows every minute and can remove none; in the
    -- archive it rereads the new rows and can mark none of them all-visible.
    futile := EXISTS (
        SELECT FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
           AND a.backend_type = 'client backend' AND a.xact_start < clock_timestamp() - held_for)
        AND (resting OR pg_stat_get_dead_tuples('messages.message'::regclass) > dead_rows);
    FOR busy IN
        SELECT c.oid::regclass AS relation, coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) AS rests,
               c.oid = 'messages.message'::regclass OR p.partition IS NOT NULL AS grows
          FROM pg_class c
          LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = 'messages.message_archive'::regclass
          LEFT JOIN messages.archive_partitions() p ON p.partition::regclass = c.oid AND clock_timestamp() >= p.first_at AND clock_timestamp() < p.end_at
         WHERE c.oid = 'messages.message'::regclass
            OR (i.inhrelid IS NOT NULL AND has_table_privilege(c.oid, 'DELETE'))    -- not one that another role made by hand
    LOOP
        IF futile AND busy.grows AND NOT busy.rests THEN
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', busy.relation);
        ELSIF busy.rests AND NOT futile THEN
            EXECUTE format('ALTER TABLE %s RESET (autovacuum_enabled)', busy.relation);
        END IF;
    END LOOP;
    RETURN futile;
EXCEPTION WHEN lock_not_available THEN
    RETURN resting;
END $$;
COMMENT ON FUNCTION messages.suspend_futile_autovacuum(interval, bigint) IS
    'Switches off autovacuum of the messages and of the archive''s current partition while a session holds a snapshot for so long that it could remove nothing, and on again afterwards; true while it is off.';
