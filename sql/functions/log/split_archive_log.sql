CREATE OR REPLACE FUNCTION messages.split_archive_log(
    from_xid     bigint,
    before_xid   bigint,
    max_messages integer DEFAULT NULL,
    from_id      bigint  DEFAULT 0,
    before_id    bigint  DEFAULT 0,
    max_steps    integer DEFAULT 1000
) RETURNS TABLE (xid bigint, id bigint, messages bigint, archived_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    one   record;
    steps integer := 0;
    place bigint := greatest(from_xid, 1);
    until bigint;
    width bigint := 20000;
BEGIN
    PERFORM messages.check_number('max_steps', coalesce(max_steps, 0), 1, 10000);
    PERFORM messages.check_number('max_messages', coalesce(max_messages, 1), 1, 2147483647);
    messages := 0;
    IF from_xid = 0 THEN
        -- The beginning of the log, which knows no transactions: by ids.
        FOR one IN
            SELECT a.id, count(*) AS messages FROM messages.message_archive a
             WHERE a.xid IS NULL AND a.id >= from_id AND (before_xid > 0 OR a.id < before_id)
             GROUP BY a.id ORDER BY a.id
        LOOP
            IF messages > 0 AND messages + one.messages > max_messages THEN
                xid := 0;
                id := one.id;
                RETURN NEXT;
                messages := 0;
                steps := steps + 1;
                IF steps >= max_steps THEN
                    RETURN;
                END IF;
            END IF;
            messages := messages + one.messages;
        END LOOP;
    END IF;
    id := 0;
    -- In windows, so that the first steps of a long backlog do not count all of it.
    WHILE place < before_xid LOOP
        until := least(before_xid, place + width);
        width := width * 4;
        FOR one IN
            SELECT a.xid, count(*) AS messages, max(a.archived_at) AS archived_at FROM messages.message_archive a
             WHERE a.xid >= place AND a.xid < until
             GROUP BY a.xid ORDER BY a.xid
        LOOP
            IF messages > 0 AND messages + one.messages > max_messages THEN
                xid := one.xid;
                RETURN NEXT;
                messages := 0;
                steps := steps + 1;
                IF steps >= max_steps THEN
                    RETURN;
                END IF;
            END IF;
            messages := messages + one.messages;
            archived_at := greatest(archived_at, one.archived_at);
            width := 20000;
        END LOOP;
        place := until;
    END LOOP;
    IF messages > 0 THEN
        xid := before_xid;
        id := CASE WHEN before_xid = 0 THEN before_id ELSE 0 END;
        RETURN NEXT;
    END IF;
END $$;
COMMENT ON FUNCTION messages.split_archive_log(bigint, bigint, integer, bigint, bigint, integer) IS
    'Splits a range of the archive as a log into steps of whole transactions, of up to max_messages each (more only if one transaction archived more); the last step ends where the range does, and an empty range has none. A step is given by its exclusive end: a transaction; or 0 and an id, in the beginning of the log. PQ004: bad argument.';
