CREATE OR REPLACE FUNCTION messages.release_messages(queue_name text, ids bigint[] DEFAULT NULL, holder text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
    held  record;
    ended bigint;
    done  bigint := 0;
    why   text   := CASE WHEN release_messages.ids IS NULL THEN 'its consumer ended without a result' ELSE 'its lease was ended by hand' END;
BEGIN
    PERFORM messages.check_queue(release_messages.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(release_messages.ids), 0, 10000);
    -- A holder is of any length: it is made of names that others chose.
    IF coalesce(release_messages.holder, release_messages.ids::text, '') = '' THEN
        RAISE EXCEPTION 'holder is %', coalesce(quote_literal(release_messages.holder), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give ids, or the locked_by of the leases, or its beginning up to a slash.';
    END IF;
    -- By holder it reads the whole queue: no index has the lease in it, so that a lease stays cheap.
    -- Locks them in the order of their ids, as archive and release do, so that two calls cannot deadlock.
    FOR held IN
        WITH theirs AS MATERIALIZED (
            SELECT m.id, m.lock_token FROM messages.message_rows m
             WHERE m.queue_name = release_messages.queue_name COLLATE "default" AND m.lock_expires_at > clock_timestamp() AND m.lock_token IS NOT NULL
               AND (release_messages.ids IS NULL OR m.id = ANY (release_messages.ids))
               AND (release_messages.holder IS NULL OR m.locked_by = release_messages.holder OR starts_with(m.locked_by, release_messages.holder || '/'))
             ORDER BY m.id FOR UPDATE)
        SELECT t.lock_token, array_agg(t.id) AS ids FROM theirs t GROUP BY t.lock_token ORDER BY min(t.id)
    LOOP
        RETURN QUERY SELECT messages.release(held.lock_token, held.ids, details => why,
                                             failure => jsonb_build_object('message', why, 'unfinished', true));
        GET DIAGNOSTICS ended = ROW_COUNT;
        done := done + ended;
    END LOOP;
    PERFORM messages.record_audit('release_messages', release_messages.queue_name, jsonb_build_object(
        'ids', release_messages.ids, 'holder', release_messages.holder), done) WHERE done > 0;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a lease of queue %L', release_messages.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.release_messages(text, bigint[], text) IS
    'Ends leases of a queue, of these messages or of this holder, and returns the ids of the messages that were leased; the attempt counts, because a message may be why its consumer is gone. The leases of a holder are those whose locked_by is holder, or begins with holder and a slash; to find them, it reads the whole queue. Whoever still works under such a lease has lost it. An entry of the audit. PQ001: unknown queue; PQ004: neither ids nor holder, or more than 10000 ids; PQ016: a transaction that extends or ends one of these leases stays open for more than three seconds.';
