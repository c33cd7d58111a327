CREATE OR REPLACE FUNCTION messages.release(
    lock_token    uuid,
    ids           bigint[],
    delay         interval DEFAULT '0',
    count_attempt boolean  DEFAULT true,
    details       text     DEFAULT NULL,
    failure       jsonb    DEFAULT NULL,
    back_off      boolean  DEFAULT false
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
-- By the index of the ids, so that two calls lock what both have in one order.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    -- A text without a class begins with a space, so that nobody takes it for one.
    error    text        := left(CASE WHEN release.failure ->> 'error' <> '' THEN concat_ws(': ', release.failure ->> 'error', release.failure ->> 'message')
                                      ELSE ' ' || coalesce(nullif(release.failure ->> 'message', ''), release.details) END, 500);
    released record;
BEGIN
    PERFORM messages.check_duration('delay', release.delay, '0', '366 days');
    PERFORM messages.check_outcomes(NULL, NULL, release.failure);
    IF error IS NOT NULL AND release.count_attempt IS NOT FALSE THEN
        INSERT INTO messages.failed_attempt (message_id, attempt, queue_name, leased_at, handled_by, fingerprint, failure)
        SELECT m.id, m.attempts, m.queue_name, m.leased_at, m.locked_by, messages.fingerprint('failed', release.details, release.failure),
               coalesce(release.failure, jsonb_build_object('message', left(release.details, 4000)))
          FROM messages.message_rows m JOIN messages.queue q ON q.queue_name = m.queue_name
         WHERE m.id = ANY (release.ids) AND m.lock_token = release.lock_token AND m.lock_expires_at > clock_timestamp() AND m.attempts < q.max_attempts
        ON CONFLICT DO NOTHING;
    END IF;
    WITH freed AS (
        UPDATE messages.message_rows m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL,
               visible_at = CASE
                   WHEN release.back_off THEN
                       -- In seconds, because an interval overflows. Jitter, from half of the pause to all of it, so that what failed
                       -- together does not come back together.
                       moment + least(extract(epoch FROM q.backoff_max), extract(epoch FROM q.backoff_first) * 2 ^ least(greatest(m.attempts, 1) - 1, 30))
                                * (0.5 + random() / 2) * interval '1 second'
                   WHEN release.delay > '0' THEN greatest(moment, moment + release.delay)
                   ELSE m.visible_at END,
               -- Where keys take turns, its turn waits for the end of the delay.
               due_at = CASE WHEN m.fair_key IS NOT NULL AND (release.back_off OR release.delay > '0') THEN coalesce(m.due_at, m.visible_at) ELSE m.due_at END,
               attempts = m.attempts - (release.count_attempt IS FALSE)::integer,
               last_error = coalesce(error, m.last_error)
          FROM messages.queue q
         WHERE m.id = ANY (release.ids) AND m.lock_token = release.lock_token AND m.lock_expires_at > clock_timestamp()
           AND q.queue_name = m.queue_name AND (release.count_attempt IS FALSE OR m.attempts < q.max_attempts)
        RETURNING m.id, m.queue_name, m.visible_at),
    timed AS (
        INSERT INTO messages.timer (queue_name, at, ids)
        SELECT f.queue_name, f.visible_at, array_agg(f.id) FROM freed f WHERE f.visible_at > moment GROUP BY f.queue_name, f.visible_at)
    SELECT min(f.queue_name) AS queue_name, array_agg(f.id ORDER BY f.visible_at, f.id) AS ids INTO released FROM freed f;
    IF released.ids IS NOT NULL THEN
        PERFORM messages.give_back(released.queue_name, released.ids);
        PERFORM messages.ring_for(released.queue_name, released.ids[1]);       -- whoever waits learns when to look again
        RETURN QUERY SELECT unnest(released.ids);
    END IF;
    -- What is left under this token had its last attempt.
    RETURN QUERY SELECT messages.archive(release.lock_token, release.ids, 'failed',
                                         coalesce(release.details, 'released after its last attempt'), failure => release.failure);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a message of this lease');
END $$;
COMMENT ON FUNCTION messages.release(uuid, bigint[], interval, boolean, text, jsonb, boolean) IS
    'Gives leased messages back, now or after a delay or the back-off of the queue, and returns the ids; an id that is missing was lost. One that is ready at once keeps its place in the order; one with a delay comes when its time comes. Keeps the error of failure, or else details, as last_error, and all of it as a failed attempt for 30 days. After its last attempt a message is archived as failed instead, with details and failure. count_attempt => false takes the attempt off the count, for work that should merely be done later. PQ004: bad delay or failure; PQ016: another transaction has a message of this lease for more than three seconds.';
