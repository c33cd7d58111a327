CREATE OR REPLACE FUNCTION messages.search_archive(
    queue_name    text        DEFAULT NULL,
    id            bigint      DEFAULT NULL,
    reference     text        DEFAULT NULL,
    result        text        DEFAULT NULL,
    fingerprint   text        DEFAULT NULL,
    archived_from timestamptz DEFAULT NULL,
    archived_to   timestamptz DEFAULT NULL,
    max_messages  integer     DEFAULT 100
) RETURNS SETOF messages.archive_overview
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    begins timestamptz := (SELECT p.begins_at FROM messages.archive_policy p);
BEGIN
    PERFORM messages.check_number('max_messages', coalesce(search_archive.max_messages, 0), 1, 10000);
    IF search_archive.archived_from < begins OR search_archive.archived_to < begins THEN
        RAISE EXCEPTION 'the archive begins at %', begins
            USING ERRCODE = 'PQ009', HINT = 'It was installed then, or retention removed what is older. Ask for a later time, or read the export.';
    END IF;
    RETURN QUERY
    SELECT * FROM messages.archive_overview a
     WHERE (search_archive.queue_name IS NULL OR a.queue_name = search_archive.queue_name COLLATE "default")
       AND (search_archive.id IS NULL OR a.id = search_archive.id)
       AND (search_archive.reference IS NULL OR a.reference = search_archive.reference)
       AND (search_archive.result IS NULL OR a.result = search_archive.result)
       AND (search_archive.fingerprint IS NULL OR a.fingerprint = search_archive.fingerprint)
       AND (search_archive.archived_from IS NULL OR a.archived_at >= search_archive.archived_from)
       AND (search_archive.archived_to IS NULL OR a.archived_at < search_archive.archived_to)
     ORDER BY a.archived_at DESC, a.id DESC LIMIT search_archive.max_messages;
END $$;
COMMENT ON FUNCTION messages.search_archive(text, bigint, text, text, text, timestamptz, timestamptz, integer) IS
    'Finished messages, newest first, without bodies; NULL matches any. An id, reference or fingerprint is found through an index; anything else scans the partitions of that time. A queue that does not exist is no error: the archive keeps the messages of those that were dropped. PQ009: older than the archive.';
