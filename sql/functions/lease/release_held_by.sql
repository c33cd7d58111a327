CREATE OR REPLACE FUNCTION messages.release_held_by(queue_name text, holder text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    held     record;
    released bigint := 0;
BEGIN
    PERFORM messages.check_queue(release_held_by.queue_name, 'consume');
    -- Of any length: it is made of names that others chose.
    IF coalesce(release_held_by.holder, '') = '' THEN
        RAISE EXCEPTION 'holder is %', coalesce(quote_literal(release_held_by.holder), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give the locked_by of the leases, or its beginning up to a slash.';
    END IF;
    -- Reads the whole queue: no index has the lease in it, so that a lease stays cheap.
    -- Locks them in the order of their ids, as archive and release do, so that two calls cannot deadlock.
    FOR held IN
        WITH theirs AS MATERIALIZED (
            SELECT m.id, m.lock_token FROM messages.message_rows m
             WHERE m.queue_name = release_held_by.queue_name COLLATE "default" AND m.lock_expires_at > clock_timestamp() AND m.lock_token IS NOT NULL
               AND (m.locked_by = release_held_by.holder OR starts_with(m.locked_by, release_held_by.holder || '/'))
             ORDER BY m.id FOR UPDATE)
        SELECT t.lock_token, array_agg(t.id) AS ids FROM theirs t GROUP BY t.lock_token
    LOOP
        released := released + (SELECT count(*) FROM messages.release(
            held.lock_token, held.ids, details => 'its consumer ended without a result'));
    END LOOP;
    RETURN released;
EXCEPTION
    WHEN lock_not_available THEN
        PERFORM messages.raise_in_use(format('a lease of queue %L', release_held_by.queue_name));
    WHEN deadlock_detected THEN
        PERFORM messages.raise_deadlock(format('a lease of queue %L', release_held_by.queue_name));
END $$;
COMMENT ON FUNCTION messages.release_held_by(text, text) IS
    'Releases at once what a consumer that is gone still holds, as if its leases had expired, and returns how many messages there were. These are all leases whose locked_by is holder, or begins with holder and a slash. The attempt counts, because one of the messages may be why the consumer is gone. Whoever still works under such a lease has lost it. Reads the whole queue. PQ001: unknown queue; PQ004: bad holder; PQ016: a transaction that extends or ends one of these leases stays open for more than three seconds.';
