CREATE OR REPLACE FUNCTION messages.split_archive_log(
    from_xid bigint, before_xid bigint, max_messages integer DEFAULT NULL, max_steps integer DEFAULT 1000,
    queue_names text[] DEFAULT NULL
) RETURNS TABLE (xid bigint, messages bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    one   record;
    steps integer := 0;
    place bigint := from_xid;
    until bigint;
    width bigint := 20000;
BEGIN
    PERFORM messages.check_number('max_steps', max_steps, 1, 10000, required => true);
    PERFORM messages.check_number('max_messages', max_messages, 1, 2147483647);
    PERFORM messages.check_number('from_xid', from_xid, 0, 1000000000000000000), messages.check_number('before_xid', before_xid, 0, 1000000000000000000);
    messages := 0;
    -- The log is counted in windows, so that the first steps of a long backlog do not count all of it.
    WHILE place < before_xid LOOP
        until := least(before_xid, place + width);
        width := width * 4;
        FOR one IN
            SELECT a.xid, count(*) AS messages FROM messages.archive_rows a
             WHERE a.xid >= place AND a.xid < until AND (queue_names IS NULL OR a.queue_name = ANY (queue_names))
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
            width := 20000;
        END LOOP;
        place := until;
    END LOOP;
    IF messages > 0 THEN
        xid := before_xid;
        RETURN NEXT;
    END IF;
END $$;
COMMENT ON FUNCTION messages.split_archive_log(bigint, bigint, integer, integer, text[]) IS
    'Splits a range of the archive as a log into steps of whole transactions, of up to max_messages of these queues each (more only if one transaction archived more). A step is given by the transaction before which it ends; the last one ends where the range does, and an empty range has none. PQ004: bad argument.';
