-- What was dropped or changed since the last installation, and is made only once: before the migrations, which build on it.
-- The rest of the installation makes functions, views, owners and grants again. Without CONCURRENTLY, as it is one transaction.
DO $$
DECLARE
    drift record;
BEGIN
    IF (SELECT max(o.server) FROM messages.release_object o) IS DISTINCT FROM current_setting('server_version_num')::integer / 10000 THEN
        RETURN;
    END IF;
    FOR drift IN SELECT * FROM messages.release_differences() LOOP
        IF drift.difference = 'missing' AND drift.kind IN ('table', 'column', 'sequence', 'type') THEN
            RAISE EXCEPTION '% % of schema messages is missing', drift.kind, drift.name USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Restore it from a backup: the installation cannot know what was in it.';
        END IF;
        CONTINUE WHEN drift.mend IS NULL OR drift.difference = 'added';
        EXECUTE drift.mend;
        RAISE INFO '% % was %: made again', drift.kind, drift.name, drift.difference;
    END LOOP;
END $$;
