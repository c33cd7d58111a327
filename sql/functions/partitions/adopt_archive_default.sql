CREATE OR REPLACE FUNCTION messages.adopt_archive_default() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
DECLARE
    oldest   timestamptz;
    newest   timestamptz;
    first_at timestamptz;
    end_at   timestamptz;
    name     text;
BEGIN
    PERFORM messages.lock_row('messages.archive_policy');
    PERFORM messages.lock_briefly('messages.archive_rows', 'ACCESS EXCLUSIVE');
    SELECT min(d.archived_at), max(d.archived_at) INTO oldest, newest FROM messages.message_archive_default d;
    IF oldest IS NULL THEN
        RETURN NULL;
    END IF;
    -- Whole months, as far as the partitions before and after leave room.
    SELECT greatest(date_trunc('month', oldest), max(p.end_at) FILTER (WHERE p.end_at <= oldest)),
           least(date_trunc('month', newest) + interval '1 month', min(p.first_at) FILTER (WHERE p.first_at > newest))
      INTO first_at, end_at FROM messages.archive_partitions() p;
    name := format('message_archive_%s_to_%s', to_char(first_at, 'YYYYMMDD'), to_char(end_at, 'YYYYMMDD'));
    ALTER TABLE messages.archive_rows DETACH PARTITION messages.message_archive_default;
    EXECUTE format('ALTER TABLE messages.message_archive_default RENAME TO %I', name);
    EXECUTE format('CREATE TABLE messages.message_archive_default (LIKE messages.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    PERFORM messages.keep_private('messages.message_archive_default');
    ALTER TABLE messages.message_archive_default REPLICA IDENTITY FULL;
    EXECUTE format('ALTER TABLE messages.archive_rows ATTACH PARTITION messages.%I FOR VALUES FROM (%L) TO (%L)', name, first_at, end_at);
    ALTER TABLE messages.archive_rows ATTACH PARTITION messages.message_archive_default DEFAULT;
    PERFORM messages.make_archive_partitions();
    RETURN name;
END $$;
COMMENT ON FUNCTION messages.adopt_archive_default() IS
    'Turns the default partition of the archive into a partition for the months of its messages, puts an empty default partition in its place, and returns the name (NULL: it was empty). Moves no message; reads that partition once, while the archive is locked. PQ016: the archive is in use.';
