CREATE OR REPLACE FUNCTION messages.dismiss(lock_token uuid, ids bigint[], reason text, remedied_by text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    dismissed record;
    entered   bigint[];
BEGIN
    IF coalesce(btrim(dismiss.reason), '') = '' THEN
        RAISE EXCEPTION 'reason is empty' USING ERRCODE = 'PQ004', HINT = 'Say why nothing more has to be done.';
    END IF;
    PERFORM messages.check_length('remedied_by', dismiss.remedied_by, 0, 600);     -- what fits into an index, of characters of any length
    FOR dismissed IN
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (dismiss.ids) AND d.lock_token = dismiss.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by)
    UPDATE messages.archive_rows a
       SET remedy = 'dismissed', remedied_at = clock_timestamp(), dismissed_for = left(dismiss.reason, 4000),
           remedied_by = coalesce(dismiss.remedied_by, left(mine.locked_by, 600))
      FROM mine WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id, a.queue_name, a.group_key
    LOOP
        -- It no longer blocks its group.
        IF dismissed.group_key IS NOT NULL THEN
            entered := messages.next_of_groups(dismissed.queue_name, ARRAY[dismissed.group_key], '{}');
            IF entered <> '{}' THEN
                PERFORM messages.ring_for(dismissed.queue_name, dismissed.id);
            END IF;
        END IF;
        RETURN NEXT dismissed.id;
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.dismiss(uuid, bigint[], text, text) IS
    'Closes leased dead messages without publishing them again, records the reason in the archive, and returns the ids; an id that is missing was lost. PQ004: no reason, or bad remedied_by; PQ016: another transaction has a dead message of this lease for more than three seconds.';
