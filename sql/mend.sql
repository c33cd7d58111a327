-- What was dropped or changed since the last installation, and is made only once: before the migrations, which build on it.
-- The rest of the installation makes functions, views, owners and grants again. Without CONCURRENTLY, as it is one transaction.
-- What is run here lies in a table that the members of messages_owner may change. So it runs as that role, and in a function of its
-- own, where no statement can go back to the superuser who installs.
DROP FUNCTION IF EXISTS messages.mend_release();
CREATE FUNCTION messages.mend_release() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
AS $$
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
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION messages.mend_release() OWNER TO %s', (SELECT n.nspowner::regrole::text FROM pg_namespace n WHERE n.nspname = 'messages'));
    PERFORM messages.mend_release();
END $$;
DROP FUNCTION messages.mend_release();
