-- What was dropped or changed since the last installation, and is made only once: before the migrations, which build on it.
-- The rest of the installation makes functions, views, owners and grants again. Without CONCURRENTLY, as it is one transaction.
-- What is run here lies in a table that the members of messages_owner may change. PostgreSQL fills a materialized view as its
-- owner and lets nothing out: no role or setting, no deferred trigger, no cursor.
DROP MATERIALIZED VIEW IF EXISTS messages.mending;
DROP FUNCTION IF EXISTS messages.mend_release();
CREATE FUNCTION messages.mend_release() RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    drift record;
BEGIN
    IF (SELECT max(o.server) FROM messages.release_object o) IS DISTINCT FROM current_setting('server_version_num')::integer / 10000 THEN
        RETURN false;
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
    RETURN true;
END $$;
CREATE MATERIALIZED VIEW messages.mending AS SELECT messages.mend_release() WITH NO DATA;
DO $$
DECLARE
    owner text := (SELECT n.nspowner::regrole FROM pg_namespace n WHERE n.nspname = 'messages');
BEGIN
    EXECUTE format('ALTER FUNCTION messages.mend_release() OWNER TO %s', owner);
    EXECUTE format('ALTER MATERIALIZED VIEW messages.mending OWNER TO %s', owner);
END $$;
REFRESH MATERIALIZED VIEW messages.mending;
DROP MATERIALIZED VIEW messages.mending;
DROP FUNCTION messages.mend_release();
