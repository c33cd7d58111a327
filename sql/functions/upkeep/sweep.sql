CREATE OR REPLACE FUNCTION messages.sweep(
    queue_name   text,
    priority     smallint,
    above        timestamptz,
    below        timestamptz,
    max_attempts integer,
    max_messages integer,
    moment       timestamptz DEFAULT NULL,
    OUT lowest   timestamptz,
    OUT highest  timestamptz,
    OUT freed    integer,
    OUT archived integer,
    OUT ends     timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := coalesce(sweep.moment, clock_timestamp());
    begins timestamptz;
    place  timestamptz := sweep.above;
    many   integer     := 100;        -- mostly the first is what it looks for, or there are few
    look   record;
BEGIN
    -- The one walk over live leases: all that follows begins where it ends. It takes a while, and what ends meanwhile counts.
    LOOP
        SELECT count(*) AS seen, max(m.visible_at) AS until, min(m.lock_expires_at) AS ends,
               min(m.visible_at) FILTER (WHERE m.lock_expires_at IS NULL OR m.lock_expires_at <= coalesce(sweep.moment, clock_timestamp())) AS begins
          INTO look
          FROM (SELECT m.visible_at, m.lock_expires_at FROM messages.message m
                 WHERE m.queue_name = sweep.queue_name COLLATE "default" AND m.priority = sweep.priority
                   AND m.visible_at >= place AND m.visible_at < sweep.below AND m.visible_at <= moment
                 ORDER BY m.visible_at LIMIT many) m;
        begins := look.begins;
        EXIT WHEN begins IS NOT NULL;
        ends := least(coalesce(ends, 'infinity'), look.ends);
        IF look.seen < many THEN
            freed := 0;
            archived := 0;
            RETURN;
        END IF;
        -- Of the last moment there may be more; and it may be that of all.
        many := CASE WHEN look.until > place THEN least(many, 1000) ELSE many END * 10;
        place := look.until;
    END LOOP;
    ends := NULL;
    moment := coalesce(sweep.moment, clock_timestamp());
    -- One statement, one snapshot: what it archives is what it deletes. A lease taken by plain SQL has no token and did
    -- not count its attempt, so its end counts it.
    WITH stale AS MATERIALIZED (
        SELECT m.ctid AS place, m.visible_at,
               coalesce(m.expires_at <= moment, false)
               OR m.attempts + (m.lock_token IS NULL)::integer >= sweep.max_attempts AS over
          FROM messages.message m
         WHERE m.queue_name = sweep.queue_name COLLATE "default" AND m.priority = sweep.priority
           AND m.visible_at >= begins AND m.visible_at < sweep.below AND m.visible_at <= moment
           AND coalesce(m.lock_expires_at, m.expires_at) <= moment
         ORDER BY m.visible_at LIMIT sweep.max_messages FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM messages.message m WHERE m.ctid = ANY (ARRAY(SELECT place FROM stale WHERE over)) RETURNING m.*),
    buried AS (
        INSERT INTO messages.message_archive (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                              queue_name, result, handled_by, details, reference, topic, group_key,
                                              fingerprint, headers, message)
        SELECT id, created_at, leased_at, requeued_from, priority,
               least(attempts + (lock_expires_at IS NOT NULL AND lock_token IS NULL)::integer, 32767), requeues, queue_name,
               CASE WHEN lock_expires_at IS NULL THEN 'expired' ELSE 'lock_expired' END, locked_by,
               CASE WHEN lock_expires_at IS NULL THEN format('not handled by %s', expires_at)
                    ELSE format('the lease ended at %s without a result', lock_expires_at) END,
               reference, topic, group_key,
               messages.fingerprint(CASE WHEN lock_expires_at IS NULL THEN 'expired' ELSE 'lock_expired' END, NULL, NULL),
               headers, message
          FROM gone RETURNING 1),
    again AS (
        UPDATE messages.message m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL,
               attempts = least(m.attempts + (m.lock_token IS NULL)::integer, 32767)
         WHERE m.ctid = ANY (ARRAY(SELECT place FROM stale WHERE NOT over)) RETURNING m.visible_at)
    SELECT (SELECT min(visible_at) FROM again), (SELECT max(visible_at) FROM stale),
           (SELECT count(*) FROM again), (SELECT count(*) FROM buried)
      INTO lowest, highest, freed, archived;
    -- Ready and yet below the mark: its publisher committed late, or a consumer rolled back. Only as far as this sweep came.
    lowest := least(lowest, (
        SELECT m.visible_at FROM messages.message m
         WHERE m.queue_name = sweep.queue_name COLLATE "default" AND m.priority = sweep.priority
           AND m.visible_at >= begins AND m.visible_at < sweep.below
           AND m.visible_at <= CASE WHEN freed + archived < sweep.max_messages THEN moment ELSE highest END
           AND m.lock_expires_at IS NULL
         ORDER BY m.visible_at LIMIT 1));
END $$;
COMMENT ON FUNCTION messages.sweep(text, smallint, timestamptz, timestamptz, integer, integer, timestamptz) IS
    'From above to before below: archives messages that are out of attempts or past their expires_at and ends expired leases, max_messages of both, as of the moment, by default that at which it sees each. lowest: the visible_at of the oldest message that is ready now; highest: that of the last one swept, where the next call continues; ends: when the first of the leases ends, if there was nothing but leases.';
