-- Causes: count failures that have the same reason.
--
-- The fingerprint of a dead message is the same for each message with the same cause: the class and the text of its error without
-- numbers, ids and quoted texts. dead_causes counts open dead messages by it, dead_trend also by time. retried_causes counts failed
-- attempts of messages that are not finished.
--
-- Tables: none.

CREATE OR REPLACE FUNCTION messages.dead_causes(queue_name text DEFAULT NULL)
RETURNS TABLE (cause_queue text, result text, fingerprint text, waiting bigint, first_at timestamptz, last_at timestamptz,
               newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r)
    SELECT c.queue_name, c.result, c.fingerprint, c.waiting, c.first_at, c.last_at, c.newest_id,
           (SELECT coalesce(a.failure ->> 'error', CASE WHEN r.bodies OR a.queue_name = ANY (r.body_queues) THEN left(a.details, 200) END)
              FROM messages.archive_rows a CROSS JOIN reach r
             WHERE a.id = c.newest_id AND a.archived_at >= c.first_at AND a.archived_at <= c.last_at)
      FROM (SELECT d.queue_name, d.result, d.fingerprint, count(*) AS waiting, min(d.archived_at) AS first_at,
                   max(d.archived_at) AS last_at, max(d.id) AS newest_id
              FROM messages.dead_message d CROSS JOIN reach r
             WHERE (dead_causes.queue_name IS NULL OR d.queue_name = dead_causes.queue_name COLLATE "default")
               AND (r.everything OR d.queue_name = ANY (r.queue_names))
             GROUP BY d.queue_name, d.result, d.fingerprint) c
     ORDER BY c.waiting DESC, c.newest_id;
    IF NOT FOUND AND dead_causes.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_causes.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_causes IS
    'Open dead messages, by queue, result and fingerprint, with the class of the newest error as an example, or its text if this login may read the bodies. PQ001: unknown queue, with no dead message.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.dead_trend(
    queue_name text        DEFAULT NULL,
    since      timestamptz DEFAULT NULL,
    until      timestamptz DEFAULT NULL,
    step       interval    DEFAULT '1 hour',
    max_causes integer     DEFAULT 100
) RETURNS TABLE (cause_queue text, result text, fingerprint text, pattern text, died bigint, waiting bigint, trend text,
                 first_at timestamptz, last_at timestamptz, series_from timestamptz, series_step interval, series bigint[],
                 sample_ids bigint[], sample_references text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    steps record;
    made  record;
BEGIN
    PERFORM messages.check_access(dead_trend.queue_name, 'observe') WHERE dead_trend.queue_name IS NOT NULL;
    PERFORM messages.check_number('max_causes', dead_trend.max_causes, 1, 1000, required => true);
    SELECT * INTO steps FROM messages.history_steps(coalesce(dead_trend.since, coalesce(dead_trend.until, clock_timestamp()) - interval '1 day'),
                                                    dead_trend.until, dead_trend.step);
    -- Whole hours and days are read from the rows of hours and days, which are far fewer.
    SELECT CASE WHEN mod(extract(epoch FROM dead_trend.step), 86400) = 0 THEN greatest(k.since, date_trunc('day', steps.end_at)) ELSE k.since END AS days,
           CASE WHEN mod(extract(epoch FROM dead_trend.step), 3600) = 0 THEN greatest(k.until, date_trunc('hour', steps.end_at)) ELSE k.until END AS hours
      INTO made FROM messages.history_begins() k WHERE k.grain = 'hour';
    RETURN QUERY
    WITH kept AS MATERIALIZED (SELECT * FROM messages.history_begins()),
    reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    recorded AS MATERIALIZED (
        SELECT h.queue_name, h.result, h.fingerprint, date_bin(dead_trend.step, h.bucket_at, steps.origin) AS at, h.messages
          FROM (VALUES ('minute', made.hours, 'infinity'::timestamptz), ('hour', made.days, made.hours),
                       ('day', '-infinity', made.days)) AS g (grain, from_at, end_at) CROSS JOIN reach r
          JOIN messages.history_cause h
            ON h.grain = g.grain AND h.bucket_at >= greatest(steps.first_at, g.from_at) AND h.bucket_at < least(steps.end_at, g.end_at)
         WHERE (dead_trend.queue_name IS NULL OR h.queue_name = dead_trend.queue_name COLLATE "default")
           AND (r.everything OR h.queue_name = ANY (r.queue_names))),
    cause AS MATERIALIZED (
        SELECT n.queue_name, n.result, n.fingerprint, sum(n.messages)::bigint AS died
          FROM recorded n GROUP BY 1, 2, 3 ORDER BY 4 DESC, 3 LIMIT dead_trend.max_causes),
    series AS (
        SELECT c.queue_name, c.result, c.fingerprint, array_agg(coalesce(s.messages, 0) ORDER BY b.at) AS series
          FROM cause c
         CROSS JOIN generate_series(steps.first_at, steps.end_at - interval '1 microsecond', dead_trend.step) AS b (at)
          LEFT JOIN (SELECT n.queue_name, n.result, n.fingerprint, n.at, sum(n.messages)::bigint AS messages FROM recorded n GROUP BY 1, 2, 3, 4) s
            ON s.queue_name = c.queue_name AND s.result = c.result AND s.fingerprint = c.fingerprint AND s.at = b.at
         GROUP BY 1, 2, 3)
    SELECT c.queue_name, c.result, c.fingerprint, newest.pattern, c.died, w.waiting,
           -- The deaths in the last quarter of the time, compared with a quarter of all deaths.
           CASE WHEN q.late = c.died THEN 'new' WHEN q.late > 1.5 * c.died / 4 THEN 'growing'
                WHEN q.late < 0.5 * c.died / 4 THEN 'fading' ELSE 'steady' END,
           seen.first_at, seen.last_at, steps.first_at, dead_trend.step, s.series, newest.ids, newest.references
      FROM cause c
      JOIN series s ON s.queue_name = c.queue_name AND s.result = c.result AND s.fingerprint = c.fingerprint
     CROSS JOIN LATERAL (
        SELECT coalesce(sum(one.messages), 0) AS late FROM unnest(s.series) WITH ORDINALITY AS one (messages, place)
         WHERE one.place > cardinality(s.series) - greatest(1, cardinality(s.series) / 4)) q
     CROSS JOIN LATERAL (
        SELECT min(ends.first_at) AS first_at, max(ends.last_at) AS last_at FROM kept k CROSS JOIN LATERAL (
            SELECT min(h.bucket_at) AS first_at,
                   max(h.bucket_at) FILTER (WHERE h.bucket_at >= steps.first_at AND h.bucket_at < steps.end_at) AS last_at
              FROM messages.history_cause h
             WHERE h.queue_name = c.queue_name AND h.fingerprint = c.fingerprint AND h.result = c.result
               AND h.grain = k.grain AND h.bucket_at >= k.since AND h.bucket_at < k.until) ends) seen
     CROSS JOIN LATERAL (
        SELECT count(*) AS waiting FROM (
            SELECT FROM messages.dead_message d
             WHERE d.queue_name = c.queue_name AND d.fingerprint = c.fingerprint AND d.result = c.result LIMIT 10000) d) w
     CROSS JOIN LATERAL (
        SELECT array_agg(a.id ORDER BY a.archived_at DESC) AS ids, array_agg(left(a.reference, 200) ORDER BY a.archived_at DESC) AS references,
               (array_agg(left(concat_ws(': ', a.failure ->> 'error', CASE WHEN r.bodies OR a.queue_name = ANY (r.body_queues)
                                                                           THEN messages.error_pattern(a.details, a.failure) END), 500)
                          ORDER BY a.archived_at DESC))[1] AS pattern
          FROM (SELECT a.* FROM messages.archive_rows a
                 WHERE a.fingerprint = c.fingerprint AND a.queue_name = c.queue_name AND a.result = c.result
                   AND a.archived_at >= steps.first_at AND a.archived_at < steps.end_at + interval '1 day'
                 ORDER BY a.archived_at DESC LIMIT 5) a CROSS JOIN reach r) newest
     ORDER BY c.died DESC, c.fingerprint;
    IF NOT FOUND AND dead_trend.queue_name IS NOT NULL THEN
        PERFORM messages.check_queue(dead_trend.queue_name, 'observe');
    END IF;
END $$;
COMMENT ON FUNCTION messages.dead_trend IS
    'The causes of death from since (a day ago) to until (now), most deaths first: how many messages died in each step, how many are open now (counted up to 10000), when the cause was first and last seen, to the minute, the class and text of its errors with # for numbers and ? for quotations (only the class, unless this login may read the bodies), and the newest messages. trend: new (only in the last quarter), growing, steady or fading. The fingerprint other stands for all but the twenty most frequent causes of a queue in a minute. PQ001: unknown queue, without a death in this time; PQ004: bad step, or too many.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.retried_causes(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL, max_causes integer DEFAULT 100)
RETURNS TABLE (cause_queue text, fingerprint text, waiting bigint, attempts bigint, first_at timestamptz, last_at timestamptz, newest_id bigint, example text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('max_causes', retried_causes.max_causes, 1, 1000, required => true);
    PERFORM messages.check_queue(retried_causes.queue_name, 'observe') WHERE retried_causes.queue_name IS NOT NULL;
    RETURN QUERY
    WITH reach AS MATERIALIZED (SELECT r.* FROM messages.session_reach r),
    cause AS (
        SELECT f.queue_name, f.fingerprint, count(DISTINCT f.message_id) AS waiting, count(*) AS attempts, min(f.failed_at) AS first_at,
               max(f.failed_at) AS last_at, max(f.message_id) AS newest_id
          FROM messages.queue q CROSS JOIN reach r
         CROSS JOIN LATERAL (
            SELECT f.* FROM messages.failed_attempt f
             WHERE f.queue_name = q.queue_name AND f.failed_at >= coalesce(retried_causes.since, clock_timestamp() - interval '1 day')
             ORDER BY f.failed_at DESC LIMIT 100000) f
         WHERE (retried_causes.queue_name IS NULL OR q.queue_name = retried_causes.queue_name COLLATE "default")
           AND (r.everything OR q.queue_name = ANY (r.queue_names))
           AND EXISTS (SELECT FROM messages.message_rows m WHERE m.id = f.message_id)
         GROUP BY 1, 2 ORDER BY 3 DESC, 2 LIMIT retried_causes.max_causes)
    SELECT c.queue_name, c.fingerprint, c.waiting, c.attempts, c.first_at, c.last_at, c.newest_id,
           (SELECT CASE WHEN r.bodies OR f.queue_name = ANY (r.body_queues)
                        THEN left(concat_ws(': ', f.failure ->> 'error', f.failure ->> 'message'), 500) ELSE f.failure ->> 'error' END
              FROM messages.failed_attempt f CROSS JOIN reach r
             WHERE f.message_id = c.newest_id AND f.fingerprint = c.fingerprint ORDER BY f.attempt DESC LIMIT 1)
      FROM cause c ORDER BY c.waiting DESC, c.fingerprint;
END $$;
COMMENT ON FUNCTION messages.retried_causes IS
    'The causes of failed attempts, by default of the last day, of messages that are not finished: how many messages wait, how many of their attempts failed, and the class of the newest error, or its text if this login may read the bodies. Reads the newest 100,000 failed attempts of each queue. PQ001: unknown queue; PQ004: bad argument.'
    ' [for: consumer, observer]';

CREATE OR REPLACE FUNCTION messages.error_pattern(details text, failure jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- COLLATE, because a Turkish database has another small letter for I.
    -- Leave out what differs between two messages with one cause: quoted texts, UUIDs and other hex, numbers, spaces.
    SELECT lower(regexp_replace(regexp_replace(regexp_replace(
        left(coalesce(failure ->> 'cause', failure ->> 'message', details, ''), 2000) COLLATE "C",
        '''[^'']*''|"[^"]*"', '?', 'g'), '[[:<:]][0-9a-fA-F-]*[0-9][0-9a-fA-F-]*[[:>:]]', '#', 'g'), '[[:space:]]+', ' ', 'g'))
$$;
COMMENT ON FUNCTION messages.error_pattern IS
    'What is the same in the texts of errors with one cause, with # for numbers and ids and ? for quotations. A cause in failure counts instead of the message.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.fingerprint(result text, details text, failure jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT left(md5(result || ' ' || coalesce(failure ->> 'error', '') || ' ' || messages.error_pattern(details, failure)), 12)
$$;
COMMENT ON FUNCTION messages.fingerprint IS
    'Twelve characters that are the same for dead messages whose result, error and error message are equal apart from numbers, ids and quoted texts. A cause in failure counts instead of the message.'
    ' [internal]';
