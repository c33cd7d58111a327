-- History: what each queue held and did, by the minute, hour and day.
--
-- Each maintenance run records how many messages a queue holds, and how many were published and finished (record_history). It
-- counts ranges of ids and transactions about a minute late, so verbs write no counters. A minute without a row was like the
-- minute before, without traffic.
--
-- queue_history, queue_rates and queue_sparklines read the records. alter_history sets how long minutes, hours and days are kept.
--
-- Tables: history, history_cause, history_progress, history_policy.

CREATE OR REPLACE FUNCTION messages.queue_history(
    queue_name text,
    since      timestamptz DEFAULT NULL,
    until      timestamptz DEFAULT NULL,
    step       interval    DEFAULT '1 minute'
) RETURNS TABLE (
    bucket_at timestamptz, depth bigint, depth_max bigint, ready bigint, leased bigint, delayed bigint, dead bigint, oldest_age interval,
    arrivals bigint, completions bigint, success bigint, failed bigint, rejected bigint, lock_expired bigint, expired bigint, cancelled bigint,
    attempts bigint, wait_p50 interval, wait_p95 interval, wait_p99 interval, wait_max interval,
    run_p50 interval, run_p95 interval, run_p99 interval, run_max interval
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    steps record;
BEGIN
    PERFORM messages.check_access(queue_history.queue_name, 'observe');
    IF queue_history.queue_name IS NULL OR NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = queue_history.queue_name COLLATE "default")
       AND NOT EXISTS (SELECT FROM messages.history h WHERE h.queue_name = nullif(queue_history.queue_name, '') COLLATE "default") THEN
        PERFORM messages.raise_unknown_queue(queue_history.queue_name);
    END IF;
    SELECT * INTO steps FROM messages.history_steps(queue_history.since, queue_history.until, queue_history.step);
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    progress AS (SELECT g.begun_at, g.counted_at, g.recorded_at FROM messages.history_progress g),
    recorded AS MATERIALIZED (
        SELECT date_bin(queue_history.step, h.bucket_at, steps.origin) AS at, h.*
          FROM kept k
          JOIN messages.history h
            ON h.grain = k.grain AND h.bucket_at >= greatest(steps.first_at, k.since) AND h.bucket_at < least(steps.end_at, k.until)
         WHERE h.queue_name = queue_history.queue_name COLLATE "default"),
    total AS (
        SELECT n.at, max(n.depth_max) AS depth_max, sum(n.arrivals)::bigint AS arrivals, sum(n.success)::bigint AS success,
               sum(n.failed)::bigint AS failed, sum(n.rejected)::bigint AS rejected, sum(n.lock_expired)::bigint AS lock_expired,
               sum(n.expired)::bigint AS expired, sum(n.cancelled)::bigint AS cancelled,
               sum(n.attempts)::bigint AS attempts, max(n.wait_max) AS wait_max, max(n.run_max) AS run_max
          FROM recorded n GROUP BY n.at),
    waits AS (
        SELECT n.at, messages.sum_durations(array_agg(ARRAY[n.waits[i][1], n.waits[i][2]])) AS waits
          FROM recorded n CROSS JOIN LATERAL generate_subscripts(n.waits, 1) AS i GROUP BY 1),
    runs AS (
        SELECT n.at, messages.sum_durations(array_agg(ARRAY[n.runs[i][1], n.runs[i][2]])) AS runs
          FROM recorded n CROSS JOIN LATERAL generate_subscripts(n.runs, 1) AS i GROUP BY 1),
    last AS (
        SELECT o.*, row_number() OVER (ORDER BY o.at) AS change FROM (
            SELECT DISTINCT ON (n.at) n.at, n.depth, n.ready, n.leased, n.delayed, n.dead, n.oldest_at
              FROM recorded n WHERE n.depth IS NOT NULL ORDER BY n.at, n.bucket_at DESC) o),
    -- A value that has not changed since the beginning was recorded before it.
    before AS (
        SELECT o.* FROM unnest(ARRAY['minute', 'hour', 'day']) AS g (grain)
         CROSS JOIN LATERAL (
            SELECT h.* FROM messages.history h
             WHERE h.queue_name = queue_history.queue_name COLLATE "default" AND h.grain = g.grain AND h.bucket_at <= steps.first_at - ('1 ' || g.grain)::interval AND h.depth IS NOT NULL
             ORDER BY h.bucket_at DESC LIMIT 1) o
         ORDER BY o.bucket_at DESC LIMIT 1),
    bucket AS (
        SELECT b.at AS bucket_at, t.depth_max, t.arrivals, t.success, t.failed, t.rejected, t.lock_expired, t.expired, t.cancelled, t.attempts,
               t.wait_max, t.run_max, w.waits, r.runs, count(l.at) OVER (ORDER BY b.at) AS change,
               b.at <= p.counted_at AND b.at + queue_history.step > p.begun_at AS known,
               -- Whether maintenance ran is known for as long as minutes are kept.
               b.at <= p.recorded_at AND b.at + queue_history.step > p.begun_at
               AND (b.at < k.since OR EXISTS (SELECT FROM messages.history n WHERE n.queue_name = '' AND n.grain = 'minute'
                                           AND n.bucket_at >= b.at AND n.bucket_at < b.at + queue_history.step)) AS seen,
               least(b.at + queue_history.step, p.recorded_at) AS ends_at
          FROM generate_series(steps.first_at, steps.end_at - interval '1 microsecond', queue_history.step) AS b (at)
         CROSS JOIN progress p JOIN kept k ON k.grain = 'minute'
          LEFT JOIN total t ON t.at = b.at LEFT JOIN waits w ON w.at = b.at LEFT JOIN runs r ON r.at = b.at LEFT JOIN last l ON l.at = b.at),
    level AS (
        SELECT l.change, l.depth, l.ready, l.leased, l.delayed, l.dead, l.oldest_at FROM last l
        UNION ALL
        SELECT 0, coalesce(o.depth, 0), coalesce(o.ready, 0), coalesce(o.leased, 0), coalesce(o.delayed, 0), coalesce(o.dead, 0), o.oldest_at
          FROM (VALUES (true)) AS one (row) LEFT JOIN before o ON true)
    SELECT b.bucket_at, l.depth, CASE WHEN b.seen THEN greatest(b.depth_max, l.depth) END, l.ready, l.leased, l.delayed, l.dead,
           CASE WHEN l.oldest_at IS NOT NULL THEN greatest(b.ends_at - l.oldest_at, '0') END,
           CASE WHEN b.known THEN coalesce(b.arrivals, 0) END,
           CASE WHEN b.known THEN coalesce(b.success + b.failed + b.rejected + b.lock_expired + b.expired + b.cancelled, 0) END,
           CASE WHEN b.known THEN coalesce(b.success, 0) END, CASE WHEN b.known THEN coalesce(b.failed, 0) END,
           CASE WHEN b.known THEN coalesce(b.rejected, 0) END, CASE WHEN b.known THEN coalesce(b.lock_expired, 0) END,
           CASE WHEN b.known THEN coalesce(b.expired, 0) END, CASE WHEN b.known THEN coalesce(b.cancelled, 0) END,
           CASE WHEN b.known THEN coalesce(b.attempts, 0) END,
           messages.duration_quantile(b.waits, 0.5, b.wait_max), messages.duration_quantile(b.waits, 0.95, b.wait_max),
           messages.duration_quantile(b.waits, 0.99, b.wait_max), b.wait_max,
           messages.duration_quantile(b.runs, 0.5, b.run_max), messages.duration_quantile(b.runs, 0.95, b.run_max),
           messages.duration_quantile(b.runs, 0.99, b.run_max), b.run_max
      FROM bucket b LEFT JOIN level l ON b.seen AND l.change = b.change
     ORDER BY b.bucket_at;
END $$;
COMMENT ON FUNCTION messages.queue_history IS
    'One row for each step from since (an hour ago) to until (now): the numbers of the queue at its end, what arrived and was archived in it, and percentiles, rounded up by at most 19 percent. Levels are NULL for steps without a maintenance run; everything is NULL before the history begins and where it is not recorded yet: what went through a queue is counted a minute later. Steps begin at whole multiples since 2001-01-01 UTC, a Monday. Where the history is kept only by the hour or day, shorter steps are empty except the first of each hour or day. PQ001: unknown queue; PQ004: more than 10000 steps, or a step that is not whole minutes.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.queue_sparklines(
    queue_names text[],
    since       timestamptz DEFAULT NULL,
    until       timestamptz DEFAULT NULL,
    step        interval    DEFAULT '1 minute'
) RETURNS TABLE (queue_name text, first_at timestamptz, arrivals bigint[], success bigint[], dead bigint[], depth bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    steps record;
BEGIN
    PERFORM messages.check_number('the number of queues', coalesce(cardinality(queue_sparklines.queue_names), 0), 0, 500);
    SELECT * INTO steps FROM messages.history_steps(queue_sparklines.since, queue_sparklines.until, queue_sparklines.step);
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    bucket AS MATERIALIZED (
        SELECT b.at, b.at <= p.counted_at AND b.at + queue_sparklines.step > p.begun_at AS known,
               b.at <= p.recorded_at AND b.at + queue_sparklines.step > p.begun_at
               AND (b.at < k.since OR EXISTS (SELECT FROM messages.history n WHERE n.queue_name = '' AND n.grain = 'minute'
                                           AND n.bucket_at >= b.at AND n.bucket_at < b.at + queue_sparklines.step)) AS seen
          FROM generate_series(steps.first_at, steps.end_at - interval '1 microsecond', queue_sparklines.step) AS b (at)
         CROSS JOIN messages.history_progress p JOIN kept k ON k.grain = 'minute'),
    wanted AS MATERIALIZED (
        SELECT q.queue_name, o.depth
          FROM messages.queue q
          -- A value that has not changed since the beginning was recorded before it.
          LEFT JOIN LATERAL (
            SELECT l.depth FROM unnest(ARRAY['minute', 'hour', 'day']) AS g (grain)
             CROSS JOIN LATERAL (
                SELECT h.bucket_at, h.depth FROM messages.history h
                 WHERE h.queue_name = q.queue_name AND h.grain = g.grain AND h.bucket_at <= steps.first_at - ('1 ' || g.grain)::interval AND h.depth IS NOT NULL
                 ORDER BY h.bucket_at DESC LIMIT 1) l
             ORDER BY l.bucket_at DESC LIMIT 1) o ON true
         WHERE q.queue_name = ANY (queue_sparklines.queue_names)
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))),
    recorded AS MATERIALIZED (
        SELECT h.queue_name, date_bin(queue_sparklines.step, h.bucket_at, steps.origin) AS at, sum(h.arrivals)::bigint AS arrivals,
               sum(h.success)::bigint AS success, sum(h.failed + h.rejected + h.lock_expired + h.expired)::bigint AS dead,
               (array_agg(h.depth ORDER BY h.bucket_at DESC) FILTER (WHERE h.depth IS NOT NULL))[1] AS depth
          FROM kept k
          JOIN messages.history h
            ON h.grain = k.grain AND h.bucket_at >= greatest(steps.first_at, k.since) AND h.bucket_at < least(steps.end_at, k.until)
         WHERE h.queue_name = ANY (queue_sparklines.queue_names)
         GROUP BY 1, 2),
    part AS (
        SELECT w.queue_name, b.*, n.arrivals, n.success, n.dead, n.depth, w.depth AS before,
               count(n.depth) OVER (PARTITION BY w.queue_name ORDER BY b.at) AS change
          FROM wanted w CROSS JOIN bucket b LEFT JOIN recorded n ON n.queue_name = w.queue_name AND n.at = b.at),
    filled AS (
        SELECT p.*, coalesce(first_value(p.depth) OVER (PARTITION BY p.queue_name, p.change ORDER BY p.at), p.before, 0) AS level FROM part p)
    SELECT f.queue_name, min(f.at), array_agg(CASE WHEN f.known THEN coalesce(f.arrivals, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.known THEN coalesce(f.success, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.known THEN coalesce(f.dead, 0) END ORDER BY f.at),
           array_agg(CASE WHEN f.seen THEN f.level END ORDER BY f.at)
      FROM filled f GROUP BY f.queue_name;
END $$;
COMMENT ON FUNCTION messages.queue_sparklines IS
    'The history of up to 500 queues, one row for each with a number for each step; unknown queues, and those that this login may not observe, are left out. PQ004: too many queues or steps, or a bad step.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.queue_rates(
    queue_names text[]   DEFAULT NULL,
    period      interval DEFAULT '5 minutes'
) RETURNS TABLE (queue_name text, arrivals bigint, success bigint, dead bigint, run_max interval, wait_max interval, seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    counted timestamptz := (SELECT date_trunc('minute', g.counted_at, 'UTC') FROM messages.history_progress g);
BEGIN
    PERFORM messages.check_duration('period', queue_rates.period, '1 minute', '1 day', required => true);
    RETURN QUERY
    SELECT h.queue_name, sum(h.arrivals)::bigint, sum(h.success)::bigint,
           sum(h.failed + h.rejected + h.lock_expired + h.expired)::bigint, max(h.run_max), max(h.wait_max),
           date_part('epoch', queue_rates.period)
      FROM messages.history h
     -- The last minute is not completed yet.
     WHERE h.queue_name <> '' AND h.grain = 'minute' AND h.bucket_at >= counted - queue_rates.period AND h.bucket_at < counted
       AND (queue_rates.queue_names IS NULL OR h.queue_name = ANY (queue_rates.queue_names))
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR h.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     GROUP BY h.queue_name;
END $$;
COMMENT ON FUNCTION messages.queue_rates IS
    'What went through each queue in the last whole minutes that maintenance counted: divide by seconds for rates. Queues without a row had no traffic. PQ004: a period of less than a minute or more than a day.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.alter_history(
    minutes_for interval DEFAULT NULL,
    hours_for   interval DEFAULT NULL,
    days_for    interval DEFAULT NULL,
    audit_for   interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    -- Only the text of 0 skips the check: the interval 1 month -30 days equals 0, and has to be checked.
    PERFORM messages.check_duration('minutes_for', alter_history.minutes_for, '2 hours', '366 days'),
            messages.check_duration('hours_for', alter_history.hours_for, '2 days', '36600 days'),
            messages.check_duration('days_for', CASE WHEN alter_history.days_for::text <> interval '0'::text THEN alter_history.days_for END, '7 days', '36600 days'),
            messages.check_duration('audit_for', CASE WHEN alter_history.audit_for::text <> interval '0'::text THEN alter_history.audit_for END, '1 day', '36600 days');
    UPDATE messages.history_policy p
       SET minutes_for = coalesce(alter_history.minutes_for, p.minutes_for), hours_for = coalesce(alter_history.hours_for, p.hours_for),
           days_for = nullif(coalesce(alter_history.days_for, p.days_for), '0'),
           audit_for = nullif(coalesce(alter_history.audit_for, p.audit_for), '0');
    PERFORM messages.record_audit('alter_history', NULL, jsonb_build_object(
        'minutes_for', alter_history.minutes_for, 'hours_for', alter_history.hours_for,
        'days_for', alter_history.days_for, 'audit_for', alter_history.audit_for), NULL);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('the policy of the history');
END $$;
COMMENT ON FUNCTION messages.alter_history IS
    'Changes how long minutes, hours and days of the history and the audit are kept; NULL keeps a value, 0 keeps days or the audit forever. Maintenance deletes what is older. PQ004: out of range; PQ016: another transaction is changing it for more than three seconds.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.record_history(xids_at_once bigint DEFAULT 200000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    last     messages.history_progress;
    newest   bigint      := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    up_to    bigint;
    complete boolean;
    rows     bigint      := 0;
BEGIN
    SELECT * INTO last FROM messages.history_progress FOR UPDATE;
    IF last.next_xid > greatest(newest, pg_current_xact_id()::text::bigint + 1) THEN
        PERFORM messages.begin_history();                       -- a copy, on a server with smaller transaction numbers
        RETURN 0;
    END IF;
    -- Transactions under way at the end of the range have had a minute to commit. A time that lies ahead counts as none.
    IF last.next_at <= moment - interval '50 s' OR last.next_at > moment THEN
        -- After a pause there is much to count: count in parts, for at most half a second.
        LOOP
            up_to := least(last.next_xid, last.counted_xid + record_history.xids_at_once);
            complete := up_to = last.next_xid;
            rows := rows + messages.count_history(last.counted_xid, up_to, last.counted_id, CASE WHEN complete THEN last.next_id ELSE last.counted_id END,
                                                  least(last.counted_at, moment) - interval '1 day');
            last.counted_xid := up_to;
            EXIT WHEN complete OR clock_timestamp() > moment + interval '0.5 s';
        END LOOP;
        IF complete THEN
            last.counted_at := last.next_at;
            last.counted_id := last.next_id;
            last.next_at := moment;
            last.next_xid := newest;
            last.next_id := coalesce(pg_sequence_last_value('messages.message_id_seq'), 0);
        END IF;
    END IF;
    UPDATE messages.history_progress p
       SET recorded_at = moment, counted_at = last.counted_at, counted_xid = last.counted_xid, counted_id = last.counted_id,
           next_at = last.next_at, next_xid = last.next_xid, next_id = last.next_id;
    -- The row of grain all has each queue as the last maintenance run found it: record what has changed since.
    WITH changed AS MATERIALIZED (
        SELECT s.*, moment - s.oldest_age AS oldest_at
          FROM messages.status() s LEFT JOIN messages.history h ON h.queue_name = s.queue_name AND h.grain = 'all'
         WHERE (s.depth, s.ready, s.leased, s.delayed, s.dead)
               IS DISTINCT FROM (coalesce(h.depth, 0), coalesce(h.ready, 0), coalesce(h.leased, 0), coalesce(h.delayed, 0), coalesce(h.dead, 0))
            OR (s.oldest_age IS NULL) <> (h.oldest_at IS NULL) OR abs(date_part('epoch', moment - s.oldest_age - h.oldest_at)) > 2)
    INSERT INTO messages.history AS t (queue_name, grain, bucket_at, depth, depth_max, ready, leased, delayed, dead, oldest_at)
    SELECT c.queue_name, g.grain, CASE WHEN g.grain = 'all' THEN 'epoch' ELSE date_trunc(g.grain, moment) END,
           c.depth, c.depth, c.ready, c.leased, c.delayed, c.dead, c.oldest_at
      FROM changed c CROSS JOIN unnest(ARRAY['minute', 'hour', 'day', 'all']) AS g (grain)
    ON CONFLICT (queue_name, grain, bucket_at) DO UPDATE SET
        depth = excluded.depth, depth_max = greatest(excluded.depth_max, t.depth_max), ready = excluded.ready, leased = excluded.leased,
        delayed = excluded.delayed, dead = excluded.dead, oldest_at = excluded.oldest_at;
    -- A row without a queue records that maintenance ran in this minute.
    INSERT INTO messages.history (queue_name, grain, bucket_at) VALUES ('', 'minute', date_trunc('minute', moment)) ON CONFLICT DO NOTHING;
    DELETE FROM messages.history h WHERE h.grain = 'all' AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = h.queue_name);
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.record_history IS
    'Records what each queue holds now, if it has changed, and what went through it up to the last complete count, which is at least 50 seconds ago; returns how many minutes of a queue it counted. Each message is counted once. A transaction that stays open for longer is not counted. Stops after about half a second and continues the next time.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.count_history(from_xid bigint, to_xid bigint, from_id bigint, to_id bigint, earliest timestamptz)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- There are four classes for each doubling.
    per_doubling CONSTANT double precision := 4 / ln(2.0::double precision);
    moment       timestamptz := clock_timestamp();
    rows         bigint;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT a.queue_name, date_bin('1 minute', least(a.archived_at, moment), 'epoch') AS at, a.result,
               CASE WHEN a.result NOT IN ('success', 'cancelled')
                    THEN coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)) END AS fingerprint,
               least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.waited) * 1000)))))::integer AS wait,
               least(120, greatest(0, ceil(per_doubling * ln(greatest(1e-9, date_part('epoch', a.ran) * 1000)))))::integer AS run,
               count(*) AS messages, sum(a.attempts) AS attempts, max(a.waited) AS wait_max, max(a.ran) AS run_max
          FROM (SELECT f.queue_name, f.archived_at, f.result, f.fingerprint, f.details, f.failure, f.attempts, f.leased_at - f.created_at AS waited,
                       CASE WHEN f.result IN ('success', 'failed', 'rejected') THEN f.archived_at - f.leased_at END AS ran
                  FROM messages.archive_rows f
                 -- The condition on archived_at prunes older partitions.
                 WHERE f.xid >= count_history.from_xid AND f.xid < count_history.to_xid
                   AND f.archived_at >= count_history.earliest AND isfinite(f.archived_at)
                -- OFFSET 0 lets each difference be computed once.
                OFFSET 0) a
         GROUP BY 1, 2, 3, 4, 5, 6),
    arrived AS (
        SELECT o.queue_name, date_bin('1 minute', CASE WHEN o.created_at BETWEEN count_history.earliest AND moment THEN o.created_at ELSE moment END, 'epoch') AS at, count(*) AS messages
          FROM (SELECT m.queue_name, m.created_at FROM messages.message_rows m WHERE m.id > count_history.from_id AND m.id <= count_history.to_id
                UNION ALL
                SELECT a.queue_name, a.created_at FROM messages.archive_rows a
                 WHERE a.id > count_history.from_id AND a.id <= count_history.to_id AND a.archived_at >= count_history.earliest) o
         GROUP BY 1, 2),
    part AS (
        SELECT e.*, 0 AS arrivals FROM ended e
        UNION ALL
        SELECT a.queue_name, a.at, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, a.messages FROM arrived a),
    counted AS (
        INSERT INTO messages.history AS t (queue_name, grain, bucket_at, arrivals, success, failed, rejected, lock_expired, expired, cancelled,
                                           attempts, wait_max, run_max, waits, runs)
        SELECT p.queue_name, g.grain, CASE WHEN g.grain = 'all' THEN 'epoch' ELSE date_trunc(g.grain, p.at) END, sum(p.arrivals),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'success'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'failed'), 0),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'rejected'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'lock_expired'), 0),
               coalesce(sum(p.messages) FILTER (WHERE p.result = 'expired'), 0), coalesce(sum(p.messages) FILTER (WHERE p.result = 'cancelled'), 0),
               sum(p.attempts), max(p.wait_max), max(p.run_max),
               messages.sum_durations(array_agg(ARRAY[p.wait, p.messages]) FILTER (WHERE p.wait IS NOT NULL AND g.grain <> 'all')),
               messages.sum_durations(array_agg(ARRAY[p.run, p.messages]) FILTER (WHERE p.run IS NOT NULL AND g.grain <> 'all'))
          FROM part p CROSS JOIN unnest(ARRAY['minute', 'hour', 'day', 'all']) AS g (grain)
         WHERE g.grain <> 'all' OR EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = p.queue_name)
         GROUP BY 1, 2, 3
        ON CONFLICT (queue_name, grain, bucket_at) DO UPDATE SET
            arrivals = t.arrivals + excluded.arrivals, success = t.success + excluded.success, failed = t.failed + excluded.failed,
            rejected = t.rejected + excluded.rejected, lock_expired = t.lock_expired + excluded.lock_expired,
            expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled, attempts = t.attempts + excluded.attempts,
            wait_max = greatest(t.wait_max, excluded.wait_max), run_max = greatest(t.run_max, excluded.run_max),
            waits = messages.sum_durations(t.waits || excluded.waits), runs = messages.sum_durations(t.runs || excluded.runs)
        RETURNING t.grain),
    died AS (
        SELECT e.queue_name, e.at, e.result,
               CASE WHEN row_number() OVER (PARTITION BY e.queue_name, e.at ORDER BY sum(e.messages) DESC, e.fingerprint) <= 20
                    THEN e.fingerprint ELSE 'other' END AS fingerprint, sum(e.messages) AS messages
          FROM ended e WHERE e.fingerprint IS NOT NULL GROUP BY e.queue_name, e.at, e.result, e.fingerprint),
    causes AS (
        INSERT INTO messages.history_cause AS t (queue_name, grain, bucket_at, result, fingerprint, messages)
        SELECT d.queue_name, g.grain, date_trunc(g.grain, d.at), d.result, d.fingerprint, sum(d.messages)
          FROM died d CROSS JOIN unnest(ARRAY['minute', 'hour', 'day']) AS g (grain) GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (queue_name, grain, bucket_at, result, fingerprint) DO UPDATE SET messages = t.messages + excluded.messages)
    SELECT count(*) FILTER (WHERE c.grain = 'minute') INTO rows FROM counted c;
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.count_history IS
    'Adds to the history what transactions of this range archived, and the messages of this range of ids, and returns how many minutes of a queue it wrote. The beginning of the transactions and the end of the ids belong to the range.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.begin_history() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO messages.history_progress AS p (counted_xid, counted_id, next_xid, next_id)
    SELECT n.xid, n.id, n.xid, n.id
      FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid,
                   coalesce(pg_sequence_last_value('messages.message_id_seq'), 0) AS id) n
    ON CONFLICT (only_row) DO UPDATE SET
        counted_xid = excluded.counted_xid, counted_id = excluded.counted_id, next_xid = excluded.next_xid, next_id = excluded.next_id
$$;
COMMENT ON FUNCTION messages.begin_history IS
    'Lets the history begin, or continue on another server, with what is archived and published from now on.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.delete_old_history(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    old    record;
    moment timestamptz := clock_timestamp();
BEGIN
    FOR old IN
        SELECT r.relation, k.grain, k.since FROM messages.history_begins() k CROSS JOIN (VALUES ('history'), ('history_cause')) AS r (relation)
    LOOP
        EXECUTE format('DELETE FROM messages.%1$I WHERE ctid = ANY (ARRAY(
                            SELECT o.ctid FROM messages.%1$I o WHERE o.grain = $1 AND (o.bucket_at < $2 OR o.bucket_at > $4)
                             ORDER BY o.bucket_at LIMIT $3))', old.relation) USING old.grain, old.since, delete_old_history.max_rows, moment;
    END LOOP;
    DELETE FROM messages.audit a WHERE a.ctid = ANY (ARRAY(
        SELECT o.ctid FROM messages.audit o WHERE o.at < clock_timestamp() - (SELECT p.audit_for FROM messages.history_policy p)
         ORDER BY o.at LIMIT delete_old_history.max_rows));
END $$;
COMMENT ON FUNCTION messages.delete_old_history IS 'Deletes what history_policy no longer keeps, and what lies ahead because the clock was wrong, at most max_rows of each kind.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.history_steps(
    since timestamptz, until timestamptz, step interval,
    OUT first_at timestamptz, OUT end_at timestamptz, OUT origin timestamptz
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_duration('step', history_steps.step, '1 minute', '366 days', required => true);
    IF extract(month FROM history_steps.step) <> 0 OR extract(year FROM history_steps.step) <> 0
       OR mod(extract(epoch FROM history_steps.step), 60) <> 0 THEN
        RAISE EXCEPTION 'step is %', history_steps.step
            USING ERRCODE = 'PQ004', HINT = 'Give whole minutes, hours or days.';
    END IF;
    origin := '2001-01-01 00:00 UTC';
    end_at := coalesce(history_steps.until, moment);
    IF NOT isfinite(end_at) OR NOT isfinite(coalesce(history_steps.since, moment))
       OR end_at > moment + interval '10 years' OR history_steps.since < origin THEN
        RAISE EXCEPTION 'the time from % to % is out of range', history_steps.since, history_steps.until
            USING ERRCODE = 'PQ004', HINT = 'Give times after 2001 and not in the far future.';
    END IF;
    first_at := date_bin(history_steps.step, coalesce(history_steps.since, end_at - interval '1 hour'), origin);
    IF first_at >= end_at THEN
        RAISE EXCEPTION 'the time from % to % is empty', first_at, end_at
            USING ERRCODE = 'PQ004', HINT = 'Give an end that is later than the beginning.';
    ELSIF date_part('epoch', end_at - first_at) > 10000 * date_part('epoch', history_steps.step) THEN
        RAISE EXCEPTION 'from % to % there are more than 10000 steps of %', first_at, end_at, history_steps.step
            USING ERRCODE = 'PQ004', HINT = 'Give a longer step or a shorter time.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.history_steps IS
    'Where the steps of a time begin and end: NULL stands for now, and for an hour earlier. PQ004: a bad step, or too many of them.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.history_begins() RETURNS TABLE (grain text, since timestamptz, until timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
    SELECT k.grain, k.since, k.until
      FROM messages.history_policy p
     CROSS JOIN LATERAL (SELECT date_trunc('hour', clock_timestamp() - p.minutes_for, 'UTC') + interval '1 hour' AS minutes,
                                date_trunc('day', clock_timestamp() - p.hours_for, 'UTC') + interval '1 day' AS hours) begins
     CROSS JOIN LATERAL (
        VALUES ('minute', begins.minutes, 'infinity'), ('hour', begins.hours, begins.minutes),
               ('day', coalesce(date_trunc('day', clock_timestamp() - p.days_for, 'UTC'), '-infinity'), begins.hours)) AS k (grain, since, until)
$$;
COMMENT ON FUNCTION messages.history_begins IS
    'From when on the history is kept in each grain, and until when that grain is read: from then on the next shorter grain has it.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.sum_durations(durations bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(ARRAY[s.class, s.messages] ORDER BY s.class)
      FROM (SELECT durations[n][1] AS class, sum(durations[n][2])::bigint AS messages
              FROM generate_subscripts(durations, 1) AS n GROUP BY 1) s
$$;
COMMENT ON FUNCTION messages.sum_durations IS
    'Adds up pairs of a class of durations and a number of messages, so that each class is there once; NULL for none.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.duration_quantile(durations bigint[], fraction double precision, longest interval) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(longest, 2 ^ (min(reached.class) / 4.0::float) * interval '1 millisecond')
      FROM (SELECT durations[n][1] AS class, sum(durations[n][2]) OVER (ORDER BY durations[n][1]) AS messages,
                   sum(durations[n][2]) OVER () AS total
              FROM generate_subscripts(durations, 1) AS n) reached
     WHERE reached.messages >= fraction * reached.total
$$;
COMMENT ON FUNCTION messages.duration_quantile IS
    'The duration that this fraction of the messages did not exceed, rounded up by at most 19 percent to the end of its class.'
    ' [internal]';
