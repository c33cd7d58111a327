CREATE OR REPLACE FUNCTION messages.set_archive_begin() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO'
AS $$
DECLARE
    begins timestamptz := (SELECT min(p.first_at) FROM messages.archive_partitions() p);
BEGIN
    ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins;
    EXECUTE format('ALTER TABLE messages.message_archive_default ADD CONSTRAINT archived_before_the_archive_begins CHECK (archived_at >= %L) NOT VALID', begins);
END $$;
COMMENT ON FUNCTION messages.set_archive_begin() IS
    'Records where the archive begins after its oldest partition was dropped; older messages are refused from now on.';
