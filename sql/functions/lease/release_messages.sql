CREATE OR REPLACE FUNCTION messages.release_messages(queue_name text, ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    held  record;
    ended bigint;
    done  bigint := 0;
BEGIN
    PERFORM messages.check_queue(release_messages.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(release_messages.ids), 0, 10000);
    FOR held IN
        WITH theirs AS MATERIALIZED (                              -- in one order, as release_held_by does
            SELECT m.id, m.lock_token FROM messages.message_rows m
             WHERE m.id = ANY (release_messages.ids) AND m.queue_name = release_messages.queue_name COLLATE "default"
               AND m.lock_expires_at > clock_timestamp() AND m.lock_token IS NOT NULL
             ORDER BY m.id FOR UPDATE)
        SELECT t.lock_token, array_agg(t.id) AS ids FROM theirs t GROUP BY t.lock_token ORDER BY min(t.id)
    LOOP
        RETURN QUERY SELECT messages.release(held.lock_token, held.ids, details => 'its lease was ended by hand');
        GET DIAGNOSTICS ended = ROW_COUNT;
        done := done + ended;
    END LOOP;
    PERFORM messages.record_remedy('release_messages', release_messages.queue_name, done, jsonb_build_object('ids', release_messages.ids));
EXCEPTION
    WHEN lock_not_available THEN
        PERFORM messages.raise_in_use(format('a lease of queue %L', release_messages.queue_name));
    WHEN deadlock_detected THEN
        PERFORM messages.raise_deadlock(format('a lease of queue %L', release_messages.queue_name));
END $$;
COMMENT ON FUNCTION messages.release_messages(text, bigint[]) IS
    'Ends the leases of some messages of a queue, whoever holds them, and returns the ids of those that were leased; the attempt counts. Whoever still works on one has lost it. An entry of the audit. PQ001: unknown queue; PQ004: more than 10000 ids; PQ016: a transaction that extends or ends one of these leases stays open for more than three seconds.';
